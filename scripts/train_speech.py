"""Group-relative RL for models that hear and write: recognition, translation, questions about what is said.

    python scripts/train_speech.py                                      # the real Whisper tiny.en, minutes on a laptop
    python scripts/train_speech.py --recipe speech/whisper_adapt
    python scripts/train_speech.py --recipe speech/ibm_sqa         # Qwen2-Audio, on a GPU
    python scripts/train_speech.py --dry-run                            # the arithmetic of a run, nothing loaded

Two families: whisper transcribes one clip (or translates it into English) and cannot be asked anything; qwen_audio is
a language model that hears, and a row says in words what it is asked about its clips.

What its GRPO is: transcripts of a clip are compared with each other by what the word error rate says of them (or
translations and answers by BLEU); each token is a decision whose likelihood is that of the distribution it was sampled
from, without the tokens that the model never says (--sampling.search beam compares the likeliest transcripts instead).
A clip is encoded once, for all its transcripts and, while the encoder is frozen, for the whole run.
What it is not: clips are at most 30 seconds long, and one that is longer or cannot be heard is left out and listed, or
stops the run; it is never cut, nor replaced.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="whisper"))
