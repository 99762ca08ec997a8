"""Makes a tiny reasoning model that needs no download: `build.py DIRECTORY WINDOW_TOKENS`.

A Qwen3 of two layers without weights, and a tokenizer trained here on the standard library's own
text. What it says is decided by `playback.py`.
"""

import json
import os
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
SPECIAL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
# Seen by parsers, so they must survive decoding.
PLAIN = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(Path(os.__file__).parent.glob("*.py"))[:150]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(
        [str(path) for path in sources],
        trainers.BpeTrainer(vocab_size=6000, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return tokenizer


def config(tokenizer: Tokenizer, window_tokens: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": window_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "vocab_size": (tokenizer.get_vocab_size() + 63) // 64 * 64,
        "bos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
        "torch_dtype": "bfloat16",
    }


def main(directory: Path, window_tokens: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": window_tokens,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": (Path(__file__).parent / "template.jinja").read_text(),
    }
    ends = [tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)]
    files = {
        "tokenizer_config": tokenizer_config,
        "config": config(tokenizer, window_tokens),
        "generation_config": {"eos_token_id": ends},
    }
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
