"""What is the same with and without `await`: requests are made and answers are read, without I/O.

| module | what |
|---|---|
| `request` | one function for each route: its arguments as a `Call` |
| `call` | `Call` and `Answer`: what is sent, and what the answer means |
| `flow` | several calls in a row, as a generator that a transport drives |
| `source` | an endless answer, event by event |
| `result` | what users get |
| `recipe` | the steps of a template as the text of a `forkd.toml` |
| `building` | `forkd build`: its arguments, and what it tells |
| `target` | where the daemon is |
"""
