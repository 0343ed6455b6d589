"""loco-train: pretraining of language models over islands of compute joined by slow links."""

__version__ = "0.2.0"
