"""The model's side: configuration, weights, decoder, runner, sampling. The package itself imports no torch."""
