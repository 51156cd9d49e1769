"""Group-relative RL for a policy that speaks: it chooses the duration of an utterance, which a synthesizer renders.

    python scripts/train_duration.py --recipe speech/demo_duration    # minutes on a laptop
    python scripts/train_duration.py --recipe speech/dmospeech2       # the paper's numbers
    python scripts/train_duration.py --dry-run                        # the arithmetic of a run, nothing is loaded

What its GRPO is: that of DMOSpeech 2 (arXiv:2507.14988). A group is one text in several durations, scored by a
recognizer, a speaker encoder and a predictor of opinion scores; the decision is a class of durations with a softmax
likelihood. The synthesizer is a black box without gradients.
What it is not: the policy reads the text only, not a reference voice, and the synthesizers are ordinary ones with a
speed, not the paper's distilled flow model. A text that cannot be spoken stops the run.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="duration"))
