"""From results on disk to figures and a web page; never imports torch models."""
