"""vLLM as the engine of rollouts, in this process or in that of ``mmgrpo serve-engine``.

Its log-probs are those of the distribution that it draws from (``processed_logprobs``). What the trainer never samples
has a bias of -100 here, the tokens that end a completion are the trainer's, and images, videos and their encoders are
not used: the trainer sends the features that it has computed, so both read the same numbers (with images in their
place the gap of a tiny Qwen2.5-VL is 5e-4, since they are rounded to 8 bits; with features 5e-7).

Weights are reloaded whole: a partial reload is accepted by vLLM with a line in its log. Which of its own tensors a
reload wrote is asked of the model itself, inside the worker (``Accounted``). With ``rollout.lora`` adapter they are
those of the checkpoint, sent once, and adapters follow by themselves, as files of peft in a folder of their own; a
module that vLLM has no adapters for is ignored by it, and an error here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors.torch import save_file
from torch import Tensor

from mmgrpo.config.settings import Config, Engine
from mmgrpo.engines.engine import OTHER, Drawn, EncodedQuery, EngineFailure, Forgotten, Named, Rules, fingerprint
from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.token_model import Context, Features, Query
from mmgrpo.randomness import derive

TESTED = ("0.32",)
"""Versions whose calls are known here; another one is named when it starts."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM reserves places for."""

SCALES = ("_scale", "_scale_inv")
"""How parameters end that quantization computes from the weights."""

FORBIDDEN = -100.0
"""The lowest bias that vLLM takes."""


@runtime_checkable
class ForEngines(Protocol):
    """A model whose media an engine of another library can be given."""

    def engine_media(self, context: Context, features: Features, row: int) -> Mapping[str, Any]:
        """vLLM's ``multi_modal_data`` of a prompt: tensors, by kind and name."""
        ...


def media_of(model: Any, context: Context, features: Features, queries: Sequence[Query]) -> list[Mapping[str, Any]]:
    """What vLLM is given of each prompt's media; ValueError for a family that does not say."""
    media: list[Mapping[str, Any]] = []
    for row, query in enumerate(queries):
        if not (query.prompt.media or query.shown):
            media.append({})
        elif isinstance(model, ForEngines):
            media.append(model.engine_media(context, features, row))
        else:
            raise ValueError(
                f"prompt '{query.prompt.id}': got media with rollout.engine vllm, which {type(model).__name__} cannot "
                "send to it; set rollout.engine=sampler, or leave it out"
            )
    return media


class Accounted:
    """What vLLM's worker is given in addition (``worker_extension_cls``)."""

    def load_accounted(self, pairs: Sequence[tuple[str, Tensor]]) -> list[str]:
        """Reload the weights; the names of those of the engine's own tensors that were not written."""
        worker: Any = self
        model = worker.model_runner.get_model()
        load, written = model.load_weights, []

        def load_and_record(weights: Iterator[tuple[str, Tensor]]) -> Any:
            names = load(weights)
            written.extend(names or ())
            return names

        names = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
        names = {name for name in names if not name.endswith(SCALES)}
        model.load_weights = load_and_record
        try:
            worker.reload_weights(weights_iterator=iter(pairs))
        finally:
            del model.load_weights
        seen = set()
        for module in model.modules():
            weight = module._parameters.get("weight")
            if id(weight) in seen and hasattr(module, "cpu_linear"):
                # On a CPU an output layer keeps a copy of the embeddings that it is tied to, which a reload forgets.
                module.quant_method.process_weights_after_loading(module)
            seen |= {id(weight)} if weight is not None else set()
        return sorted(names - set(written))

    def adapters_unbound(self, number: int) -> list[str]:
        """The modules of loaded adapters that the model has no adapters for."""
        worker: Any = self
        manager = worker.model_runner.lora_manager._adapter_manager
        return sorted(set(manager.get_adapter(number).loras) - set(manager.modules))


class VllmEngine:
    """``llm`` is a ``vllm.LLM`` whose worker has ``Accounted``, ``parameters`` its class ``SamplingParams``, and
    ``lora`` its class ``LoRARequest`` where adapters are sent by themselves."""

    def __init__(
        self,
        llm: Any,
        parameters: Any,
        sleeps: bool = False,
        name: str = "vLLM",
        lora: Callable[..., Any] | None = None,
    ) -> None:
        self.llm, self.parameters, self.sleeps, self.name, self.lora = llm, parameters, sleeps, name, lora
        self.whole, self.form = lora is None, "merged" if lora is None else "adapters"
        self.version: int | None = None
        self.sent: dict[str, str] = {}
        self.asleep = False
        self.adapters: dict[str, Tensor] = {}
        """Those of the last load, by name."""
        self.request: Any = None
        """What names them to vLLM."""
        self.loads = 0

    @staticmethod
    def of(config: Config, device: str) -> VllmEngine:
        """Start vLLM on the model of a configuration."""
        # In one process with its scheduler: seeded, and tensors are handed over as they are.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        on_gpu = device.startswith("cuda")
        if not on_gpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        import vllm

        if not vllm.__version__.startswith(TESTED):
            print(f"rollout.engine: vLLM {vllm.__version__} was not tested, only {', '.join(TESTED)}", flush=True)
        options, rollout = config.model, config.rollout
        check_cards(rollout, device)
        apart = rollout.lora == "adapter"
        longest = options.max_prompt_tokens
        limits = dict.fromkeys(("image", "video"), rollout.media_per_prompt)
        llm = vllm.LLM(
            model=options.path,
            dtype=options.dtype,
            seed=config.seed,
            trust_remote_code=False,
            logprobs_mode="processed_logprobs",
            worker_extension_cls="pipelines.vllm_engine.Accounted",
            max_model_len=longest + config.sampling.max_tokens if longest else None,
            gpu_memory_utilization=rollout.memory,
            tensor_parallel_size=rollout.tensor_parallel,
            quantization=None if rollout.quantization == "none" else rollout.quantization,
            max_num_seqs=rollout.max_sequences or None,
            enforce_eager=rollout.eager,
            enable_sleep_mode=rollout.sleep and on_gpu,
            enable_mm_embeds=True,
            **({"limit_mm_per_prompt": limits} if rollout.media_per_prompt else {}),
            **({"enable_lora": True, "max_loras": 1, "max_lora_rank": rank_of(options.lora_rank)} if apart else {}),
        )
        lora = None
        if apart:
            from vllm.lora.request import LoRARequest as lora
        return VllmEngine(llm, vllm.SamplingParams, rollout.sleep and on_gpu, lora=lora)

    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprints of the tensors that were loaded last, by the names under which they were sent."""
        return dict(self.sent)

    def load(self, tensors: Named, version: int) -> None:
        """Reload all weights, or adapters alone; EngineFailure for what the model has no place for, and for places
        left."""
        pairs, adapters = [], {}
        for name, tensor in tensors:
            if self.lora is not None and ".lora_" in name:
                adapters[name] = tensor
            else:
                pairs.append((name, tensor))
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        if pairs:
            self.version, self.sent = None, {}
            try:
                cards = self.llm.collective_rpc("load_accounted", args=(pairs,))
            except (ValueError, KeyError, AttributeError, AssertionError, RuntimeError) as error:
                raise EngineFailure(
                    f"rollout.engine: {self.name} cannot load the trainer's weights ({line_of(error)}): {OTHER}"
                ) from error
            if left := sorted({tensor for card in cards for tensor in card}):
                raise EngineFailure(
                    f"rollout.engine: {self.name}: {len(left)} of its tensors were not among those that were sent, "
                    f"e.g. '{left[0]}': one tensor was forgotten, or {OTHER}"
                )
            self.sent = {name: fingerprint(tensor) for name, tensor in pairs}
            self.request = None  # a reload forgets adapters
        if adapters or (self.adapters and self.request is None):
            self._adapt({**self.adapters, **adapters})
        self.llm.reset_prefix_cache()
        if pairs:
            # A reload empties the worker's cache of features, of which the scheduler would go on to think.
            self.llm.llm_engine.reset_encoder_cache()
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        self.version = version

    def _adapt(self, adapters: dict[str, Tensor]) -> None:
        """Load adapters in the place of the last ones."""
        self.version, self.request = None, None
        self.sent = {name: value for name, value in self.sent.items() if ".lora_" not in name}
        rank = max(len(value) for name, value in adapters.items() if ".lora_A." in name)
        modules = sorted({name.rpartition(".lora_")[0] for name in adapters})
        self.loads += 1
        with tempfile.TemporaryDirectory(prefix="adapters-") as folder:
            tensors = {f"base_model.model.{name}": value.cpu().contiguous() for name, value in adapters.items()}
            save_file(tensors, Path(folder) / "adapter_model.safetensors")
            settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules, "bias": "none"}
            (Path(folder) / "adapter_config.json").write_text(json.dumps(settings))
            assert self.lora is not None
            request = self.lora(f"round-{self.loads}", self.loads, folder)
            try:
                self.llm.llm_engine.add_lora(request)
                cards = self.llm.collective_rpc("adapters_unbound", args=(self.loads,))
            except (ValueError, KeyError, AttributeError, AssertionError, RuntimeError) as error:
                raise EngineFailure(
                    f"rollout.engine: {self.name} cannot load the trainer's adapters ({line_of(error)}); set "
                    "rollout.lora=merged"
                ) from error
        if unbound := sorted({module for card in cards for module in card}):
            raise EngineFailure(
                f"rollout.engine: {self.name} has no adapters for {len(unbound)} of the trained modules, e.g. "
                f"'{unbound[0]}'; set rollout.lora=merged"
            )
        self.adapters, self.request = adapters, request
        self.sent |= {name: fingerprint(value) for name, value in adapters.items()}

    def generate(self, encoded: Sequence[EncodedQuery], rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        """Completions of each query; every sample has a seed of its own, of the query's stream."""
        if self.version is None or self.asleep:
            raise Forgotten("no weights were loaded since it rests" if self.asleep else "no weights were loaded")
        version = self.version
        if rules.begin_suppressed - rules.suppressed:
            raise EngineFailure(
                f"rollout.engine: {self.name} cannot forbid tokens at the beginning alone, which this model needs; set "
                "rollout.engine=sampler"
            )
        requests, parameters = [], []
        for row in encoded:
            prompt = collapse_runs(row.ids, rules.media) if row.media else list(row.ids)
            for sample in range(row.query.count):
                requests.append({"prompt_token_ids": prompt, **({"multi_modal_data": row.media} if row.media else {})})
                parameters.append(
                    self.parameters(
                        n=1,
                        temperature=drawing.temperature,
                        top_p=drawing.top_p,
                        max_tokens=drawing.max_tokens,
                        seed=derive(drawing.seed, *row.query.stream, sample) % (1 << 31),
                        stop_token_ids=sorted(rules.end),
                        ignore_eos=True,  # of its generation config; the trainer's ends are those above
                        logit_bias=dict.fromkeys(sorted(rules.suppressed), FORBIDDEN) or None,
                        logprobs=0,
                        detokenize=False,
                    )
                )
        adapted = {"lora_request": self.request} if self.request is not None else {}
        results = iter(self.llm.generate(requests, parameters, use_tqdm=False, **adapted))
        return [[drawn_of(next(results), version) for _ in range(row.query.count)] for row in encoded]

    def rest(self) -> None:
        """Free weights and cache on a GPU: the next round brings the weights, or adapters to those that wait in the
        CPU's memory."""
        if self.sleeps and not self.asleep:
            self.llm.sleep(level=2 if self.whole else 1)
            self.asleep = True
            self.sent = {} if self.whole else self.sent

    def close(self) -> None:
        """End its processes and process groups, before those of the run."""
        self.llm.llm_engine.engine_core.shutdown()


def check_cards(rollout: Engine, device: str) -> None:
    """ValueError for what vLLM would not do on the cards that this process sees, before it starts."""
    from torch import cuda

    kind, _, number = device.partition(":")
    if kind != "cuda":
        for name, value, plain in (
            ("tensor_parallel", rollout.tensor_parallel, 1),
            ("quantization", rollout.quantization, "none"),
        ):
            if value != plain:
                raise ValueError(f"rollout.{name}: got {value} with vLLM on model.device={device}, expected {plain}")
        return
    if int(number or 0):
        raise ValueError(
            f"model.device: got {device} for vLLM, which takes the first cards that its process sees; leave it out and "
            f"set the environment variable CUDA_VISIBLE_DEVICES={number}"
        )
    if rollout.tensor_parallel > (there := cuda.device_count()):
        raise ValueError(
            f"rollout.tensor_parallel: got {rollout.tensor_parallel}, expected at most {there}, the cards that the "
            "process sees (CUDA_VISIBLE_DEVICES)"
        )


def line_of(error: Exception) -> str:
    """What went wrong within vLLM, whose checks of shapes say nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def rank_of(rank: int) -> int:
    """The smallest of vLLM's ranks that adapters of a rank fit in."""
    return next((supported for supported in RANKS if supported >= rank), rank)


def collapse_runs(ids: Sequence[int], marks: frozenset[int]) -> list[int]:
    """The tokens with one placeholder for each run of equal ones, which vLLM repeats itself."""
    return [token for place, token in enumerate(ids) if not (place and token in marks and ids[place - 1] == token)]


def drawn_of(result: Any, version: int) -> Drawn:
    """The one completion of a request."""
    output = result.outputs[0]
    ids = list(output.token_ids)
    log_probs = [float(table[token].logprob) for table, token in zip(output.logprobs or (), ids, strict=True)]
    return Drawn(ids, log_probs, version)
