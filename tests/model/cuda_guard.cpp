// A CPU build of torch has no device guard for CUDA, and any operator on a tensor that says it is on `cuda` asks for
// one. This one does nothing, which is enough for tensors that hold nothing.
#include <c10/core/impl/DeviceGuardImplInterface.h>

static const c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
static const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
