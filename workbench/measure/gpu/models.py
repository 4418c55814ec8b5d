"""Models without weights: folders with a ``config.json``, whose random weights the engine makes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.model.configs import shipped_config

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_hidden_layers": 2, "vocab_size": 512}  # fmt: skip

CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def folder(at: Path, name: str, **changes: Any) -> Path:
    """``at/name``, with the shipped configuration of ``name`` and some keys changed."""
    config = shipped_config(name) | changes
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
    made = at / name
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def add_tokenizer(made: Path) -> None:
    """Beside a ``config.json``: a token a byte. What text says does not matter there, that there is text does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    text = Tokenizer(models.BPE({piece: place for place, piece in enumerate(alphabet)}, []))
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = decoders.ByteLevel()
    text.save(str(made / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT}
    (made / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
