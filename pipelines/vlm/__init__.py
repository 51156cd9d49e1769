"""Vision-language models: pictures, video and text in, text out."""
