"""From a model to an answer: the questions about a failing model, one after the other, and the verdict in words."""
