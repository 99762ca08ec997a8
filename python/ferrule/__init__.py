"""An edge proxy that speaks Anthropic's Messages API in front of vLLM, SGLang and llama.cpp."""

__version__ = "0.1.0"
