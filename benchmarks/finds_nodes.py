"""The check of the benchmarks: exit status 1, a failure, if the model has all of the nodes named.

python finds_nodes.py MODEL NODE...
"""

import sys

import onnx

wanted = set(sys.argv[2:])
found = {node.name for node in onnx.load(sys.argv[1], load_external_data=False).graph.node}
sys.exit(1 if wanted <= found else 0)
