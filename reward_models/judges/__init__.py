"""Judges: any vision-language model, in this process or behind a chat API, asked about one output or about two.

A recipe names the model within the reward: judge_score(judge="vlm(model='Qwen/Qwen2.5-VL-7B-Instruct')").
"""
