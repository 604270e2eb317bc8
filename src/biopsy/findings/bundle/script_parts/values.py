"""What the model is fed, and what is expected of it."""


def read(path, samples):
    """The tensors of each sample by their names in the model; the samples say what each is called in the file."""
    import numpy as np

    if not any(samples):  # the model takes nothing
        return [{} for _ in samples]
    with np.load(path, allow_pickle=False) as file:
        return [{name: file[key] for name, key in names.items()} for names in samples]
