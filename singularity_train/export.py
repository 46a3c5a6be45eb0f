"""Export a checkpoint of the state engine to a format of others.

examples:
  python -m singularity_train.export state --list
  python -m singularity_train.export state --format safetensors --only model --output model.safetensors
  python -m singularity_train.export state --format torch --output state.pt
  python -m singularity_train.export state --format dcp --checkpoint 00000007-step-1200-5c1d2e3f --output dcp
  python -m singularity_train.export state --format trainer --output checkpoint-1200
  python -m singularity_train.export state --format lightning --output last.ckpt

The files of `torch` are read by torch.load, the folder of `dcp` by torch.distributed.checkpoint.load. The folder of
`trainer` is for resume_from_checkpoint of Hugging Face, the file of `lightning` for ckpt_path. Both take checkpoints of
singularity_train and of its adapters.

exit codes: 0 exported, 1 the checkpoint cannot be read or written, 2 wrong arguments
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from .portable import FORMATS
from .storage import ArgumentError, Checkpoints, StateStorageError
from .storage.export import export


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m singularity_train.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", type=Path, metavar="FOLDER", help="the folder of the checkpoints")
    parser.add_argument("--list", action="store_true", help="list its checkpoints and export nothing")
    parser.add_argument("--format", choices=list(FORMATS))
    parser.add_argument("--output", type=Path, metavar="PATH", help="a new file, or a new folder for dcp and trainer")
    parser.add_argument("--checkpoint", metavar="ID", help="default: the newest")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line, for programs")
    parser.add_argument("--only", metavar="KEY", help="what is below this key of the state, such as model")
    arguments = parser.parse_args(argv)
    if not arguments.list and (arguments.format is None or arguments.output is None):
        parser.error("--format and --output are needed (or --list)")
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    try:
        if arguments.list:
            checkpoints = Checkpoints(arguments.root)
            for each in map(checkpoints.get, checkpoints.ids()):
                print(f"{each.id}  step {each.step}")
            return 0
        done = export(
            arguments.root, arguments.output, arguments.format, checkpoint=arguments.checkpoint, only=arguments.only,
            writers=FORMATS,
        )  # fmt: skip
    except StateStorageError as error:
        print(json.dumps({"error": str(error)}) if arguments.json else f"error: {error}", file=_errors(arguments.json))
        return 2 if isinstance(error, ArgumentError) else 1
    if arguments.json:
        print(json.dumps({"result": asdict(done)}))
        return 0
    print(f"checkpoint {done.checkpoint} (step {done.step}): {done.tensors} tensors in {arguments.output}")
    if done.left_out:
        print(f"left out, as {arguments.format} has tensors only: {', '.join(done.left_out)}", file=sys.stderr)
    return 0


def _errors(as_json: bool) -> TextIO:
    return sys.stdout if as_json else sys.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
