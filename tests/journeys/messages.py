"""The errors that users meet most, as prose to review: ``python -m tests.journeys.messages`` writes ``messages.md``.

Tests match an error by the name of the setting and the value; how it reads is looked at here, all at once.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from mmgrpo.data.prompts import load_prompts
from tests.journeys.cli.running import call

PAGE = Path(__file__).with_suffix(".md")

HEAD = """# Errors as users read them

Provoked by `messages.py` next to this page. After a sentence was changed, `python -m tests.journeys.messages` writes
it again, to be reviewed as prose."""

COMMANDS = {
    "Settings": [
        "train --stpes 3",
        "train --steps",
        "train --lora 8",
        "train --max-tokens 8",
        "train --optim.lrr 3",
        "train --optim.lr fast",
        "train --optim.lr=-1",
        "train --optim.lr nan",
        "train --optim.ema 2",
        "train --optim.decay cosin",
        "train --optim.updates 9",
        "train --data.group-size 1",
        "train --save-every 0",
        "train --seed=-1",
        "train --name ../src",
        "train --resume=yes",
        "train --config",
        "train --config none.yaml",
        "train --config typo.yaml",
        "train --config section.yaml",
        "train --config twice.yaml",
        "train --config list.yaml",
        "train --config broken.yaml",
        "train --recipe visual/dem",
        "train --recipe demo",
        "train --resume-from step-000001",
        "train --eval.evry 2",
        "train --model.device cdua",
        "train --model.family sd4",
        "train --model.path nowhere",
        "train --model.family qwen_vl --model.task speak",
        "train --model.family wan --model.path a/b",
        "train --trackers tensorbord",
    ],
    "Algorithms": [
        "train --algorithm.preset flow_gpro",
        "train --algorithm.preset gfpo",
        "train --algorithm.objective pppo",
        "train --algorithm.objective ppo(low=-1)",
        "train --algorithm.objective ppo(lo=0.1)",
        "train --algorithm.objective ppo(low=",
        "train --algorithm.terms kl_k3(coef=-1)",
        "train --algorithm.scale group_std(eps=-1)",
        "train --algorithm.combine gdop",
        "train --sampling.plan branchtree",
        "train --sampling.plan branch_tree(splits=[0,1]) --data.group-size 6",
        "train --sampling.kernel flow_sde(a=-1)",
        "train --sampling.steps 0",
    ],
    "Rewards": [
        "train --rewards scene_al",
        "train --rewards scene_all(weight=inf)",
        "train --rewards scene_all(weight=0)",
        "train --rewards scene_all(sharpnes=2)",
        "train --rewards scene_all scene_all",
        "train --rewards own.py:best",
        "train --rewards nowhere:best",
        "train --rewards jpeg_size format",
        "score one.txt",
        "score --reward length_bonus",
        "score --reward ocr one.pkl",
        "score --reward ocr none.png",
        "serve-rewards --reward ocr --port 65536",
        "serve-rewards --reward ocr --host 0.0.0.0",
    ],
    "Commands": [
        "trian",
        "sample",
        "sample --weights latest --prompts red",
        "sample --prompts red --samples 0",
        "sample --run nowhere",
        "evaluate --run nowhere",
        "evaluate --eval.every 8",
        "evaluate --samples many",
        "export",
        "export --run nowhere",
        "papers --zz",
        "explain",
        "families sd4",
        "migrate trll beta=1",
        "migrate trl none.yaml",
        "check-data none.jsonl",
        "demo nowhere",
    ],
}
"""Commands that cannot be carried out, by what is wrong with them."""

FILES = {
    "typo.yaml": "optim: {rl: 1e-3}\n",
    "section.yaml": "optim: 3\n",
    "twice.yaml": "steps: 3\nsteps: 4\n",
    "list.yaml": "- steps\n",
    "broken.yaml": "steps: [3\n",
    "own.py": "def bset(prompts, outputs):\n    return [0.0] * len(outputs)\n",
    "one.txt": "a red circle\n",
    "one.pkl": "",
}
"""What stands in the folder in which the commands run."""

ROWS = [
    "{",
    "[]",
    '{"caption": "a red circle"}',
    '{"text": ""}',
    '{"text": 3}',
    '{"text": "a", "text": "b"}',
    '{"text": "a", "prompt": "b"}',
    '{"text": "a", "meta": 3}',
    '{"text": "a", "answer": NaN}',
    '{"text": "a", "image": "https://example.com/a.png"}',
    '{"text": "a", "image": "a.png", "images": []}',
    '{"text": "a <image>", "images": []}',
    '{"messages": []}',
    '{"messages": [{"role": "usr", "content": "a"}]}',
    '{"text": "a", "video": {"path": "a.mp4", "nframes": 8}}',
    '{"text": "a", "video": {"path": "a.mp4", "fps": 0}}',
]
"""Lines of a file of prompts that cannot be read."""


def error(of: object) -> str:
    """The message with which a command, or a file of prompts, is refused."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            if isinstance(of, Path):
                load_prompts(of)
            else:
                call(*shlex.split(str(of), posix=False))
    except (ValueError, OSError, ImportError) as refused:
        return str(refused)
    raise AssertionError(f"{of} is not refused")


def page() -> str:
    """``tests/journeys/messages.md``."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        here = os.getcwd()
        for name, text in FILES.items():
            Path(name).write_text(text, encoding="utf-8")
        for title, commands in COMMANDS.items():
            parts += [f"## {title}", *(entry(f"mmgrpo {command}", error(command)) for command in commands)]
        parts.append("## Rows of data")
        for row in ROWS:
            Path("rows.jsonl").write_text(f"{row}\n", encoding="utf-8")
            parts.append(entry(row, error(Path("rows.jsonl"))))
    text = re.sub(r"Known( here)?: .*", r"Known\1: ...", "\n\n".join(parts))  # which changes with every row of a table
    return text.replace(here, "FOLDER") + "\n"


def entry(what: str, message: str) -> str:
    return "\n".join([f"`{what}`", *(f"> {line}" for line in message.splitlines())])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
