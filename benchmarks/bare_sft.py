"""Train with TRL alone, without multicard: `benchmarks.engine` compares `engine=trl` with it.

    torchrun benchmarks/bare_sft.py --steps 60 --batch 8 --length 64 --hidden 256 ...

The script trains all weights of a randomly initialized Llama of these sizes. Its rows are random
tokens of one length.
"""

import argparse
from tempfile import TemporaryDirectory

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in (
        "steps",
        "batch",
        "length",
        "vocabulary",
        "hidden",
        "intermediate",
        "layers",
        "heads",
        "kv_heads",
    ):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    sizes = transformers.LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        tie_word_embeddings=False,
    )
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    rows = torch.randint(2, args.vocabulary, (args.steps * args.batch, args.length)).tolist()
    with TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            use_cpu=not torch.cuda.is_available(),
            per_device_train_batch_size=args.batch,
            num_train_epochs=1,
            optim="adamw_torch_fused",
            max_grad_norm=0.0,
            bf16=False,
            gradient_checkpointing=False,
            max_length=None,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        SFTTrainer(
            transformers.LlamaForCausalLM(sizes),
            arguments,
            train_dataset=Dataset.from_list([{"input_ids": row, "labels": row} for row in rows]),
            processing_class=transformers.PreTrainedTokenizerFast(
                tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
            ),
        ).train()


if __name__ == "__main__":
    main()
