"""How the script ends, whatever happens in it."""

import sys
import traceback


class CannotSay(Exception):
    """Something is missing, or something else fails."""


def exit_status(main):
    """What main returns, else 125: for any exception, Python itself would exit with 1."""
    try:
        return main()
    except (CannotSay, ImportError) as error:
        print(f"cannot say: {error}")
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print("cannot say: something else fails")
    return 125
