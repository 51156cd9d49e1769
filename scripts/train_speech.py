"""Group-relative RL for speech recognition, speech translation and spoken question answering.

    python scripts/train_speech.py                                      # the real Whisper tiny.en, minutes on a laptop
    python scripts/train_speech.py --recipe speech/whisper_adapt
    python scripts/train_speech.py --recipe speech/ibm_sqa              # Qwen2-Audio, on a GPU
    python scripts/train_speech.py --dry-run                            # the arithmetic of a run, nothing is loaded

Two families: whisper transcribes one clip (or translates it into English) and takes no instruction; qwen_audio is an
audio language model, and the text of a row is its instruction or question.

What its GRPO is: a group is several transcripts of a clip, scored by their word error rate (or several translations or
answers, by BLEU); each token is a decision whose likelihood is that of the sampling distribution, without suppressed
tokens (--sampling.search beam compares the most likely transcripts instead). A clip is encoded once for all its
transcripts and, with a frozen encoder, once per run.
What it is not: clips have at most 30 seconds; a longer or unreadable one is skipped and listed, or stops the run, but
is never truncated or replaced.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="whisper"))
