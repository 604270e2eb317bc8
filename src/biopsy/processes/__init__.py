"""Code that runs in another process, how far it may go there, and what must not outlive this one.

Every process is started here, in one of three ways:

``process`` runs one command to its end: a check, or one of our modules for a single request.
``server`` keeps one of our modules running, which answers one request after the other.
``fork_server`` keeps one of our modules running, which makes a fork for each request.

In each of them time and memory are limited, what is printed is kept up to a bound, and the group of the process is on
the list of ``cleanup``: it ends with this one, also by SIGKILL. What a request means is known to who asks, above here.
"""
