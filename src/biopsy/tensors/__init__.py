"""Named tensors in memory and in files; recorded values; random inputs."""
