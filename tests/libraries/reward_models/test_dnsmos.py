"""Opinion scores of DNSMOS from networks whose answers are known."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mmgrpo.types import Prompt
from reward_models.speech import dnsmos
from reward_models.speech.recognizer import RATE
from tests.libraries.reward_models.test_recognizer import tone


class Listener:
    """A network whose outputs are the first sample of its window, its last, and 2."""

    def run(self, names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        [samples] = inputs["input_1"]
        assert samples.shape == (144_160,)
        return [np.array([[samples[0], samples[-1], 2.0]])]


def test_opinion_scores_are_polynomials_of_the_networks_outputs_averaged_over_windows(monkeypatch):
    monkeypatch.setattr(dnsmos, "_session", Listener)
    ramp = np.arange(12 * RATE, dtype=np.float64) / RATE  # windows start at 0, 1 and 2 seconds
    scores = dnsmos.mean_opinion_scores(ramp)
    last = 144_159 / RATE

    def mean(a: float, b: float, c: float, first: float) -> float:
        return sum(a * (first + s) ** 2 + b * (first + s) + c for s in (0, 1, 2)) / 3

    assert scores["sig"] == pytest.approx(mean(-0.08397278, 1.22083953, 0.0052439, 0))
    assert scores["bak"] == pytest.approx(mean(-0.13166888, 1.60915514, -0.39604546, last))
    assert scores["ovrl"] == pytest.approx(-0.06766283 * 4 + 1.11546468 * 2 + 0.04602535)
    # one sample less is one window less
    assert dnsmos.mean_opinion_scores(ramp[:-1])["sig"] == pytest.approx((0.0052439 * 2 - 0.08397278 + 1.22083953) / 2)


def test_the_network_of_opinions_is_loaded_before_sounds_are_scored_in_threads(monkeypatch):
    threads = []
    monkeypatch.setattr(dnsmos, "_session", lambda: threads.append(threading.current_thread()) or Listener())
    monkeypatch.setattr("reward_models.speech.audio._cache", {})
    dnsmos.dnsmos([Prompt("a", "a")], [tone(1.0)])
    assert threads[0] is threading.main_thread()


@pytest.mark.parametrize(
    ("seconds", "windows"),
    [(1.0, 7), (5.0, 1), (6.0, 3), (9.0, 9), (9.01, 1), (10.99, 1), (11.0, 2), (12.0, 3), (30.0, 21)],
)
def test_windows_begin_at_whole_seconds_of_a_sound_that_is_doubled_until_it_has_one(seconds, windows, monkeypatch):
    """1 s becomes 16, whose whole seconds less 9.01 are 6.99: 7 windows. As in Microsoft's dnsmos_local.py."""
    heard = []

    class Counter(Listener):
        def run(self, names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            heard.append(float(inputs["input_1"][0, 0]))
            return super().run(names, inputs)

    monkeypatch.setattr(dnsmos, "_session", Counter)
    samples = np.arange(round(seconds * RATE)) / RATE
    dnsmos.mean_opinion_scores(samples)
    assert len(heard) == windows and heard == [place % seconds for place in range(windows)]


def test_scores_are_those_of_the_package(monkeypatch):
    """The code of speechmos, with the network's answers from outside."""
    monkeypatch.setitem(sys.modules, "librosa", SimpleNamespace())  # of which this part needs nothing
    published = pytest.importorskip("speechmos.dnsmos", exc_type=ImportError)
    monkeypatch.setattr(dnsmos, "_session", Listener)
    for seconds in (0.7, 3.0, 5.0, 6.5, 9.5, 12.3, 15.9):  # all but the windows that it loses by rounding
        samples = np.sin(np.arange(round(seconds * RATE)) * 0.01)
        theirs = object.__new__(published.DNSMOS)
        theirs.onnx_sess, theirs.p808_onnx_sess = Listener(), Listener()
        theirs.p808_onnx_sess.run = lambda *_: [[[0.0]]]
        theirs.audio_melspec = lambda audio: audio[None, :1]
        wanted = theirs(samples, RATE, False)
        ours = dnsmos.mean_opinion_scores(samples)
        assert [ours[name] for name in ("sig", "bak", "ovrl")] == pytest.approx(
            [wanted[f"{name}_mos"] for name in ("sig", "bak", "ovrl")], rel=1e-6
        )


def test_a_sound_shorter_than_the_window_is_doubled(monkeypatch):
    monkeypatch.setattr(dnsmos, "_session", Listener)
    # 160000 = 4 * 40000, one window, whose last sample, number 144159, is number 24159 of the sound
    short = np.arange(40_000) / RATE
    assert dnsmos.mean_opinion_scores(short) == dnsmos.mean_opinion_scores(np.tile(short, 4))
    value = 24_159 / RATE
    assert dnsmos.mean_opinion_scores(short)["bak"] == pytest.approx(
        -0.13166888 * value**2 + 1.60915514 * value - 0.39604546
    )


def test_a_part_of_the_opinion_is_the_score(monkeypatch):
    monkeypatch.setattr(dnsmos, "_session", Listener)
    monkeypatch.setattr("reward_models.speech.audio._cache", {})
    sound = tone(1.0)
    scores = dnsmos.mean_opinion_scores(sound.samples[0].numpy())
    for part in ("sig", "bak", "ovrl"):
        assert dnsmos.dnsmos([Prompt("a", "a")], [sound], part=part) == [pytest.approx(scores[part])]
    assert dnsmos.dnsmos([Prompt("a", "a")], [sound]) == [pytest.approx(scores["ovrl"])]
    with pytest.raises(ValueError, match="dnsmos.*part.*'all'"):
        dnsmos.dnsmos([], [], part="all")


def test_the_network_of_opinions_runs_on_one_thread_from_the_files_of_its_package(monkeypatch, tmp_path):
    asked = []
    options = SimpleNamespace(intra_op_num_threads=0)
    runtime = SimpleNamespace(
        SessionOptions=lambda: options, InferenceSession=lambda *given, **more: asked.append((*given, more))
    )
    monkeypatch.setattr(dnsmos, "import_library", lambda name: runtime)
    origin = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(dnsmos.importlib.util, "find_spec", lambda name: origin if name == "speechmos" else None)
    dnsmos._session.__wrapped__()
    cpu = {"providers": ["CPUExecutionProvider"]}
    assert asked == [(str(tmp_path / "dnsmos_models" / "sig_bak_ovr.onnx"), options, cpu)]
    assert options.intra_op_num_threads == 1
    origin.origin = None
    with pytest.raises(FileNotFoundError, match="speechmos"):
        dnsmos._session.__wrapped__()


def test_dnsmos_without_files_on_disk_is_told(monkeypatch):
    monkeypatch.setattr(dnsmos, "import_library", lambda name: SimpleNamespace())
    for spec in (None, SimpleNamespace(origin=None)):
        monkeypatch.setattr(dnsmos.importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(FileNotFoundError, match="speechmos"):
            dnsmos._session.__wrapped__()
