"""Prepares the demo's assets: a tiny policy that keeps making the same mistakes, and the problems to train it on.

The policy has Qwen2's architecture and a short supervised past: worked solutions of which most make one of the problem's
dominant mistakes. Sampled, it returns to the same few wrong answers in ever new words, and is right often enough for
reinforcement learning to find the way out.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from meds_openrlhf.data.arithmetic import NO_MISTAKE, Problem, dominant_mistakes, draw_problems, write_solution
from meds_openrlhf.data.char_tokenizer import build_char_tokenizer
from meds_openrlhf.data.templates import qwen_math_prompt

CONTEXT_LENGTH = 512
# Raised whenever problems, words or training change in code, so that assets of the code before are made anew.
TASK_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class WarmStartRecipe:
    """The settings of the supervised run; two equal recipes with equal seeds give equal assets."""

    layers: int = 6
    hidden_size: int = 128
    heads: int = 4
    steps: int = 320
    batch_size: int = 32
    learning_rate: float = 3e-3
    train_problems: int = 64
    eval_problems: int = 32
    other_problems: int = 1200
    train_share: float = 0.5
    right_share: float = 0.34
    first_mistake_share: float = 0.42

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "heads", "steps", "batch_size", "train_problems", "other_problems"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size is {self.hidden_size}: give a multiple of heads, {self.heads}")


DEFAULT_RECIPE = WarmStartRecipe()


@dataclass(frozen=True)
class ArithmeticAssets:
    """Where the demo's assets lie: the policy's folder and the two sets of problems (JSON Lines)."""

    policy: Path
    train: Path
    eval: Path


def train_policy(recipe, seed, report):
    problems = draw_problems(recipe.train_problems + recipe.eval_problems + recipe.other_problems, seed)
    tokenizer = build_char_tokenizer(CONTEXT_LENGTH)
    train, others = problems[:recipe.train_problems], problems[recipe.train_problems+recipe.eval_problems:]
    g = random.Random(f"sup-{seed}")
    ex=[]
    for _ in range(recipe.steps*recipe.batch_size):
        p = g.choice(train if g.random() < recipe.train_share else others)
        first, second = dominant_mistakes(p)
        u = g.random()
        m = NO_MISTAKE if u < recipe.right_share else first if u < recipe.right_share+recipe.first_mistake_share else second
        pr = tokenizer.encode(qwen_math_prompt(p.expression)); re_ = tokenizer.encode(write_solution(p, m, g))+[tokenizer.eos_token_id]
        ex.append((pr,re_))
    pool=recipe.batch_size*16
    batches=[]
    for s in range(0,len(ex),pool):
        c=sorted(ex[s:s+pool],key=lambda e: len(e[0])+len(e[1]))
        bs=[c[i:i+recipe.batch_size] for i in range(0,len(c),recipe.batch_size)]
        g.shuffle(bs); batches+=bs
    torch.manual_seed(seed)
    c=Qwen2Config(vocab_size=len(tokenizer),hidden_size=recipe.hidden_size,intermediate_size=2*recipe.hidden_size,num_hidden_layers=recipe.layers,num_attention_heads=recipe.heads,num_key_value_heads=recipe.heads,max_position_embeddings=CONTEXT_LENGTH,tie_word_embeddings=False,eos_token_id=tokenizer.eos_token_id,pad_token_id=tokenizer.pad_token_id,bos_token_id=None)
    m=Qwen2ForCausalLM(c)
    o=torch.optim.AdamW(m.parameters(),lr=recipe.learning_rate,betas=(0.9,0.95),weight_decay=0.01)
    t=time.time()
    for i,b in enumerate(batches):
        frac=i/recipe.steps
        lr=recipe.learning_rate*min((i+1)/20, 1.0)*(1-frac) if True else 0
        for gr in o.param_groups: gr["lr"]=lr
        n=max(len(p)+len(r) for p,r in b)
        x=torch.zeros(len(b),n,dtype=torch.long); y=torch.full((len(b),n),-100)
        for k,(p,r) in enumerate(b):
            x[k,:len(p)+len(r)]=torch.tensor(p+r); y[k,len(p):len(p)+len(r)]=torch.tensor(r)
        h=m.model(input_ids=x,use_cache=False).last_hidden_state
        loss=cross_entropy(m.lm_head(h[:,:-1]).flatten(0,1), y[:,1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(),1.0)
        o.step(); o.zero_grad()
        if i%40==39: report(f"step {i+1} loss {loss.item():.3f} {time.time()-t:.1f}s")
    return m.to(torch.bfloat16),tokenizer,train,problems[recipe.train_problems:recipe.train_problems+recipe.eval_problems]
