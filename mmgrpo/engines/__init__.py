"""Engines that draw the completions of rollouts with the trainer's weights, or not at all.

    engine.py    the interface; ``Synchronized``: weights pushed and proven by name, samples compared
    sampler.py   our own sampler as an engine
    denoising.py engines of denoising policies, and our own sampler as one
    balanced.py  several engines that share the prompts of a round
    served.py    any engine behind HTTP (``mmgrpo serve-engine``), and its client

vLLM is in ``pipelines/vllm_engine.py``.
"""
