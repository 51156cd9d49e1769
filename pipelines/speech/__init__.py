"""Speech models: sound in, text out; and policies that speak."""
