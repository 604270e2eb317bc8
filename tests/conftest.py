"""What holds for every test."""

import signal

# Started in the background of a shell, pytest and all that it starts would be deaf to Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
