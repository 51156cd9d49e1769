"""Group-relative RL for models that hear and write: recognition, translation, questions about what is said.

    python scripts/train_speech.py                                      # the real Whisper tiny.en, minutes on a laptop
    python scripts/train_speech.py --config scripts/recipes/speech/whisper_adapt.yaml
    python scripts/train_speech.py --config scripts/recipes/speech/ibm_sqa.yaml         # Qwen2-Audio, on a GPU
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

from door import enter
from run import train
from speech import SpeechConfig, arithmetic, build_trainer

from mmgrpo.runtime.config import read


def main() -> None:
    config = read(SpeechConfig, description=__doc__ or "")
    print(arithmetic(config), flush=True)
    if not config.dry_run:
        train(config, "speech", build_trainer)


if __name__ == "__main__":
    enter(main)
