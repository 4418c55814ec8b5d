"""This engine beside other servers: the same weights, token ids and machine, each system a process of its own.

`workloads` says what is asked, `systems` who is asked, `environment` and `weights` make ready what they need,
`workers/` holds what runs in them, `process` drives them, `rounds` takes turns, `quality` and `limits` say what a
figure is worth, `run` puts it together.
"""
