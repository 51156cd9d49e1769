"""One contestant of the vision-language benchmark, in a separate process (started by mmgrpo/cli/bench/vlm.py).

    python -m mmgrpo.cli.bench.vlm_worker '{"contestant": "ours", "group": 8, ...}'      # the fields of Contest

The last line of its output is the measurement as JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmgrpo.cli.bench.trainer import bench_trainer
from mmgrpo.cli.errors import enter

OURS, ALONE, ENGINE = "ours", "ours, nothing shared", "ours, drawn by vLLM"
GENERIC = "image_text"
TRL, COMPACT = "TRL", "TRL, head on answers only"


@dataclass(frozen=True)
class Contest:
    """The settings of one measurement."""

    contestant: str
    group: int
    prompts: int
    tokens: int
    steps: int
    threads: int
    folder: str
    """Folder of the model and the images."""
    uneven: bool = False
    """Completions have different lengths: ``lengths``."""
    images: int = 1
    """Images of a prompt."""
    checkpointing: bool = False
    """The backward pass computes activations again."""
    before: str = ""
    """Folder of the checkout whose code is measured; empty: this one."""

    def lengths(self) -> list[int]:
        """The length of each completion of a group, the same for all contestants: quantiles of an exponential
        distribution whose mean is a quarter of the most, the longest one the most, in an order without meaning."""
        if not self.uneven:
            return [self.tokens] * self.group
        quantiles = [-math.log1p(-(place + 0.5) / self.group) for place in range(self.group - 1)]
        scale = (self.group * self.tokens / 4 - self.tokens) / sum(quantiles)
        lengths = [*(min(max(1, round(scale * quantile)), self.tokens) for quantile in quantiles), self.tokens]
        random.Random(0).shuffle(lengths)
        return lengths

    def pictures(self) -> list[list[Path]]:
        """The files of the images of each prompt."""
        paths = sorted(Path(self.folder).glob("*.png"))
        return [paths[start : start + self.images] for start in range(0, len(paths), self.images)]


SENTENCE = "the user asks what is shown in this picture ; look at all of it , think , and then answer in one sentence ."
"""The question about every image."""


@dataclass
class Clock:
    """The times at which steps ended, the seconds of their parts, and their numbers of tokens."""

    ends: list[tuple[float, float]] = field(default_factory=list)
    """Wall-clock and processor time at the start of the first step and at the end of each."""
    rollout: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    drawing: list[float] = field(default_factory=list)
    """Processor seconds of what draws the completions, of each step; the last is of none."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def tick(self) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))
        self.drawing.append(0.0)

    def steps(self) -> list[tuple[float, float]]:
        """Wall-clock and processor seconds per step."""
        return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(self.ends)]

    def time_draws(self, draw: Any) -> Any:
        """``draw``, whose calls are the drawing of the step that runs."""

        def timed_draw(*inputs: Any, **options: Any) -> Any:
            start = time.process_time()
            result = draw(*inputs, **options)
            self.drawing[-1] += time.process_time() - start
            return result

        return timed_draw


def length_reward(texts: list[str]) -> list[float]:
    """A reward of negligible cost that differs within groups."""
    return [float(len(text) % 7) for text in texts]


def ours(contest: Contest) -> Callable[[], Clock]:
    """Our trainer; the returned function runs it."""
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.policies.token_passes import Memory
    from mmgrpo.runtime.metrics import read_metrics
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Media, Prompt, Turn
    from pipelines.training import Training
    from pipelines.vlm import image_text, qwen_vl
    from pipelines.vlm.options import QwenVlOptions, SmolVlmOptions
    from reward_models.rules.parsing import texts

    shared, clock = contest.contestant != ALONE, Clock()
    path, training = str(Path(contest.folder) / "model"), Training(gradient_checkpointing=contest.checkpointing)
    model: Any
    if contest.contestant == GENERIC:
        with redirect_stdout(sys.stderr):  # it says how it reads groups
            model = image_text.load(SmolVlmOptions(path=path), training)
    else:
        model = qwen_vl.load(QwenVlOptions(path=path), training)
        model.frozen_media = shared
    network: Any = model.network
    last = max(set(range(network.config.text_config.vocab_size)) - model.suppress_tokens)
    model.end_ids = frozenset({last} if contest.uneven else ())
    policy: Any = TokenPolicy(model, max_tokens=contest.tokens, memory=Memory(share_prefix=shared))
    if contest.contestant == ENGINE:
        draw_with_vllm(policy, contest, clock)
    else:
        policy.generate = clock.time_draws(policy.generate)
        if contest.uneven:
            end_at(contest.lengths())
    prompts = [
        Prompt(
            SENTENCE,
            paths[0].stem,
            turns=(Turn("user", (*(Media("image", str(picture)) for picture in paths), SENTENCE)),),
        )
        for paths in contest.pictures()
    ]
    folder = Path(tempfile.mkdtemp(dir=contest.folder))
    trainer = bench_trainer(
        policy,
        Scorer("length", lambda prompts, outputs: length_reward([text.text for text in texts(outputs, "length")])),
        prompts,
        folder,
        algorithm={"preset": "grpo", "terms": []},
        prompts_per_step=contest.prompts,
        group_size=contest.group,
        steps=contest.steps + 1,
        lr=1e-6,
        micro_batch_size=contest.group,
    )

    def start() -> Clock:
        clock.tick()
        for _ in range(contest.steps + 1):
            trainer.run_round()
            clock.tick()
        lines = read_metrics(folder / "metrics.jsonl")
        clock.rollout = [line["time/rollout"] for line in lines]
        clock.reward = [line["time/reward"] for line in lines]
        clock.prompt_tokens = model.prompt_length(prompts[0])
        clock.completion_tokens = int(lines[-1]["decisions"])
        return clock

    return start


def draw_with_vllm(policy: Any, contest: Contest, clock: Clock) -> None:
    """Let vLLM draw the policy's completions, in this process; those of uneven lengths end where they are to end."""
    from mmgrpo.config.settings import Engine, config_class
    from mmgrpo.family import families
    from pipelines.engines import draw_with_engine

    owner: Any = families()["qwen_vl"]
    config: Any = config_class(owner.sections)()
    config.model.path, config.model.max_prompt_tokens = str(Path(contest.folder) / "model"), 4096 - contest.tokens
    config.sampling.max_tokens = contest.tokens
    # The log-prob of an end that is put in the place of a drawn token is not that of the end.
    config.rollout = Engine(engine="vllm", max_gap=100.0 if contest.uneven else 0.0)
    draw_with_engine(owner, config, policy, "cpu", 1, 0)
    engine = policy.engine.engine
    generate = clock.time_draws(engine.generate)
    if contest.uneven:
        make, lengths = engine.parameters, itertools.cycle(contest.lengths())

        def until(prompts: Any, rules: Any, drawing: Any) -> Any:
            (end,) = rules.end
            drawn = generate(prompts, replace(rules, suppressed=rules.suppressed | rules.end), drawing)
            return [[replace(sequence, ids=[*sequence.ids[:-1], end]) for sequence in several] for several in drawn]

        engine.generate = until
        engine.parameters = lambda **options: make(**{**options, "max_tokens": next(lengths)})
    else:
        engine.generate = generate


def end_at(lengths: list[int]) -> None:
    """Let our sampler draw the last word of its vocabulary, which ends a completion, at the given lengths and nowhere
    else: the random numbers that choose words are almost 1 there, and not beyond .999 elsewhere."""
    import torch

    from mmgrpo.policies.generation import Numbers

    drawn, ends = Numbers.at, torch.tensor(lengths)

    def at(self: Numbers, own: torch.Tensor, row: torch.Tensor, highest: int) -> torch.Tensor:
        return torch.where(own + 1 == ends[row % len(ends)], 1 - 2**-24, 0.999 * drawn(self, own, row, highest))

    Numbers.at = at  # type: ignore[method-assign]


def generate_until(generate: Any, lengths: list[int], end: int) -> Any:
    """``generate`` of transformers with end tokens at the given lengths and nowhere else."""
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    ends = torch.tensor(lengths)

    class Until(LogitsProcessor):
        """Lets a row end where it is to end."""

        drawn = 0

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.drawn += 1
            scores[:, end] = -torch.inf
            now = (ends == self.drawn).repeat(len(scores) // len(ends))  # a group after the other
            scores[now] = -torch.inf
            scores[now, end] = 0.0
            return scores

    return lambda *inputs, **options: generate(*inputs, logits_processor=LogitsProcessorList([Until()]), **options)


def trl(contest: Contest) -> Callable[[], Clock]:
    """TRL's trainer; the returned function runs it."""
    from datasets import Dataset, Image
    from transformers import Qwen2_5_VLForConditionalGeneration, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils

    if contest.contestant == COMPACT:
        # On a CPU, TRL's fused head scores all positions, including prompts; with this function replaced it takes the
        # path for GPUs and scores only completions.
        utils._use_triton = lambda device: True  # type: ignore[attr-defined]
    path = Path(contest.folder) / "model"
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(path, use_safetensors=True)
    model.model.visual.requires_grad_(False)
    images = [[str(path) for path in paths] for paths in contest.pictures()]
    conversations = [[{"role": "user", "content": SENTENCE}] for _ in images]
    data = Dataset.from_dict({"prompt": conversations, "images": images}).cast_column("images", [Image()])
    clock = Clock()

    def reward(completions: list[list[dict[str, str]]], **others: Any) -> list[float]:
        return length_reward([completion[0]["content"] for completion in completions])

    trainer = GRPOTrainer(
        model,
        reward,  # type: ignore[arg-type]
        GRPOConfig(
            output_dir=tempfile.mkdtemp(dir=contest.folder),
            per_device_train_batch_size=contest.group,
            gradient_accumulation_steps=contest.prompts,
            num_generations=contest.group,
            max_completion_length=contest.tokens,
            generation_kwargs={} if contest.uneven else {"min_new_tokens": contest.tokens},
            loss_type="grpo",
            beta=0.0,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            max_steps=contest.steps + 1,
            gradient_checkpointing=contest.checkpointing,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=10**6,
        ),
        train_dataset=data,
        processing_class=processor(path),
    )
    generator: Any = model
    if contest.uneven:
        generator.generate = generate_until(generator.generate, contest.lengths(), trainer.eos_token_ids[0])
    generator.generate = clock.time_draws(generator.generate)
    sample, score_outputs = trainer._generate_and_score_completions, trainer._calculate_rewards

    def timed_reward(*arguments: Any) -> Any:
        start = time.perf_counter()
        values = score_outputs(*arguments)
        clock.reward.append(time.perf_counter() - start)
        return values

    def timed_sample(inputs: Any) -> Any:
        start = time.perf_counter()
        batch = sample(inputs)
        clock.rollout.append(time.perf_counter() - start - clock.reward[-1])
        clock.prompt_tokens = batch["prompt_ids"].shape[1]
        clock.completion_tokens = int(batch["completion_mask"].sum())
        return batch

    class Steps(TrainerCallback):
        """Records when steps end; a step is the time between two ends, including its data loading."""

        def on_train_begin(self, *_: Any, **others: Any) -> None:
            clock.tick()

        def on_step_end(self, *_: Any, **others: Any) -> None:
            clock.tick()

    trainer._calculate_rewards, trainer._generate_and_score_completions = timed_reward, timed_sample
    trainer.add_callback(Steps())

    def start() -> Clock:
        trainer.train()
        return clock

    return start


def processor(path: Path) -> Any:
    """The processor of Qwen2.5-VL without its video processor, which requires torchvision."""
    from transformers import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from pipelines.processors import load_tokenizer

    class EditProcessor(Qwen2_5_VLProcessor):
        """The original, except that it accepts None as the video processor."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return type(None)
            return super().check_argument_for_proper_class(argument_name, argument)

    tokenizer = load_tokenizer(str(path))
    return EditProcessor(
        Qwen2VLImageProcessorPil.from_pretrained(path), tokenizer, None, chat_template=tokenizer.chat_template
    )


def compete(contest: Contest) -> dict[str, Any]:
    """Run a contestant in this process: medians over all steps but the first, the least processor time of one, which
    other load on the machine lengthens the least, and memory in MiB."""
    import resource

    import torch

    torch.set_num_threads(contest.threads)
    torch.manual_seed(0)
    start = (trl if contest.contestant in (TRL, COMPACT) else ours)(contest)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    loaded = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    clock = start()
    wall, processor_time = zip(*clock.steps()[1:], strict=True)
    seconds, rollout, reward = (statistics.median(v) for v in (wall, clock.rollout[1:], clock.reward[1:]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {
        "contestant": contest.contestant,
        "group": contest.group,
        "tokens": contest.tokens,
        "uneven": contest.uneven,
        "checkpointing": contest.checkpointing,
        "before": contest.before,
        "seconds": seconds,
        "processor seconds": min(processor_time),
        "drawing": min(clock.drawing[1:-1]),
        "rollout": rollout,
        "reward": reward,
        "update": seconds - rollout - reward,
        "samples a processor second": contest.prompts * contest.group / min(processor_time),
        "tokens a processor second": clock.completion_tokens / min(clock.drawing[1:-1]),
        "peak": peak,
        "peak above load": peak - loaded,
        "prompt tokens": clock.prompt_tokens,
        "completion tokens": clock.completion_tokens,
    }


def main() -> None:
    """The entry point of the process that ``measure`` starts."""
    print(json.dumps(compete(Contest(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    enter(main)
