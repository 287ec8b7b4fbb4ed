"""What a memory of past errors does to rewards and advantages: one file a method, and the law that all of them obey.

numpy alone, so that it works in any trainer. A method is a subclass of `method.Method` in `methods.METHODS`, with its
settings in `config.schema`; `law.shaped_advantages` applies methods to a step. `shuffled` is a control of all methods.
"""
