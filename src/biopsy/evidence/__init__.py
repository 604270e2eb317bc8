"""Evidence about single layers: which of them an engine computes wrongly, and which only hand an error on."""
