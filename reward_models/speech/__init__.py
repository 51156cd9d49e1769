"""Rewards of what is spoken: recognizers, speakers, listeners and clocks judge sounds."""
