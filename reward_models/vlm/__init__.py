"""Published reward models that read the prompt with the output: on vision-language models, and CLAP for recordings."""
