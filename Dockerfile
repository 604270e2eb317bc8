# The demonstration on a machine that has nothing but Docker:
#   docker build -t biopsy . && docker run --rm biopsy
# With a model of your own, in the current folder:
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" biopsy biopsy run model.onnx --onnxrt --reference
FROM python:3.11-slim

COPY pyproject.toml MANIFEST.in LICENSE /biopsy/
COPY src /biopsy/src
COPY docs/package.md /biopsy/docs/package.md
RUN python -m pip install --no-cache-dir /biopsy

# What checks write is private to its user; nobody needs root for it.
RUN useradd --create-home engineer
USER engineer
ENV HOME=/tmp
WORKDIR /work
CMD ["biopsy", "demo", "--force", "-o", "/tmp/biopsy-demo"]
