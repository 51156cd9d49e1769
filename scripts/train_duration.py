"""Group-relative RL for a policy that speaks: it chooses how long an utterance takes, and a synthesizer says it.

    python scripts/train_duration.py --recipe speech/demo_duration    # minutes on a laptop
    python scripts/train_duration.py --recipe speech/dmospeech2       # the paper's numbers
    python scripts/train_duration.py --dry-run                     # the arithmetic of a run, nothing loaded

What its GRPO is: that of DMOSpeech 2 (arXiv:2507.14988). The same text in different durations is compared by what a
recognizer, a speaker encoder and a predictor of opinions say of the sound; the decision is one class of frames, its
likelihood a log-softmax. The synthesizer is a black box, and no gradient goes through it.
What it is not: the policy reads the text, not a voice that is to be imitated, and the synthesizers here are ordinary
ones with a speed, not the paper's distilled flow model. A text that cannot be spoken stops the run.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="duration"))
