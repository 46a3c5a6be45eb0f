"""What sft.py is given: a small Llama with random weights, a tokenizer of bytes, texts. argv: folder."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = Path(sys.argv[1])
end = "<end>"
words = {letter: number for number, letter in enumerate([end, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)
fast.save_pretrained(folder / "model")
torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=128, eos_token_id=0, pad_token_id=0, bos_token_id=0, attention_dropout=0.1,
)  # fmt: skip
LlamaForCausalLM(config).save_pretrained(folder / "model")
(folder / "data").mkdir()
with (folder / "data/train.jsonl").open("w") as out:
    for n in range(400):
        text = f"{n} times {n + 7} is {n * (n + 7)}, and {n} squared is {n * n}."
        out.write(json.dumps({"text": text}) + "\n")
