"""The KV cache as accounting: which request holds which block. No torch; tensors live on the model's side."""
