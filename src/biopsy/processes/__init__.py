"""Code that runs in another process, how far it may go there, and what must not outlive this one.

Every process is a command that leads a session of its own (``process.Process``) or a fork, and works in one of four
ways:

``process.run`` runs one command to its end: a check, or one of our modules for a single request.
``server.Server`` keeps one of our modules running, which answers one request after the other.
``warm.ForkServer`` keeps a process warm that makes a fork for each request; it is asked over a ``warm.Connection``.
``supervised`` does a task, or one call of native code, in a fork of this process.

All of them have ``watch.Limits`` of time and memory, which is counted alike for each (``own_process.taken_by_family``);
what is printed is kept up to a bound, and the group of the process is on the list of ``cleanup``: it ends with this
one, also by SIGKILL. What a request means is known to who asks, above here.
"""
