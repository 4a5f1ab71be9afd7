"""The demo model's tokenizer: one token per byte, and one for each tag, role and chat marker.

Every text round-trips, because any character is spelled in UTF-8 bytes. There are no merges, so
digits are always single tokens, which makes sums easy to learn for a tiny model.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START, END)
"""Dropped from decoded completions."""

PLAIN_TOKENS = ("<think>", "</think>", "<answer>", "</answer>", "system", "user", "assistant")
"""Kept in decoded completions, since the rewards read the tags."""

MAX_LENGTH = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def prompt_text(question: str) -> str:
    """What the chat template makes of one user message, up to where the model goes on."""
    return f"{START}user\n{question}{END}\n{START}assistant\n"


def build() -> Tokenizer:
    """The tokenizer, without its settings for chat."""
    # Sorted, because alphabet() comes from a hash set whose order changes from run to run.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_TOKENS])
    return tokenizer


def save(folder: Path) -> Tokenizer:
    """Writes `tokenizer.json` and `tokenizer_config.json` as transformers reads them."""
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "add_prefix_space": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": MAX_LENGTH,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return tokenizer
