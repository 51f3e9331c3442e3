"""One attention over T queries and keys of d dimensions, not causal, float32: its memory and its arithmetic.

B counts sequences, times heads where there are heads.
"""


def scores_bytes(batch: int, seq_len: int) -> int:
    """4 BT^2: one T x T matrix for each."""
    return 4 * batch * seq_len**2


def course_kept_bytes(batch: int, seq_len: int, head_dim: int) -> int:
    """8 BT^2 + 12 BTd + 12 BT: what the course's attention keeps for its backward.

    Its softmax is written out: exp(scores) and the probabilities, q, k and v, and of every row the index of its maximum
    (int64) and its sum.
    """
    return 2 * scores_bytes(batch, seq_len) + 12 * batch * seq_len * head_dim + 12 * batch * seq_len


def course_forward_peak_bytes(batch: int, seq_len: int) -> int:
    """16 BT^2: scaled scores, what is left without the maximum, its exp and the probabilities are alive together."""
    return 4 * scores_bytes(batch, seq_len)


def kept_bytes(batch: int, seq_len: int, head_dim: int) -> int:
    """4 BT^2 + 12 BTd: with torch.softmax the probabilities alone, and q, k and v."""
    return scores_bytes(batch, seq_len) + 12 * batch * seq_len * head_dim


def flash_kept_bytes(batch: int, seq_len: int, head_dim: int) -> int:
    """16 BTd + 4 BT: q, k, v, out, and the log-sum-exp of each row (Dao 2023, algorithm 1)."""
    return 16 * batch * seq_len * head_dim + 4 * batch * seq_len


def matmul_flops(batch: int, seq_len: int, head_dim: int) -> int:
    """4 BT^2 d: the scores, and their product with v."""
    return 4 * batch * seq_len**2 * head_dim


def softmax_flops(batch: int, seq_len: int) -> int:
    """About 5 BT^2: scale, maximum, difference, exp, and sum or division."""
    return 5 * batch * seq_len**2


def flash_least_bytes(batch: int, seq_len: int, head_dim: int, element: int = 2) -> int:
    """4 BTd elements and 4 BT: q, k and v read once, out and the log-sum-exp written once."""
    return 4 * element * batch * seq_len * head_dim + 4 * batch * seq_len
