"""Write onnx's own node tests as models with inputs and expected outputs: python write_node_tests.py FOLDER"""

import argparse
import sys
import warnings

from onnx.backend.test import cmd_tools
from onnx.backend.test.case.node import collect_testcases

warnings.simplefilter("ignore")
cases = [case for case in collect_testcases(None) if case.model is not None]
cmd_tools.model_test.collect_testcases = lambda: cases
cmd_tools.generate_data(argparse.Namespace(output=sys.argv[1]))
