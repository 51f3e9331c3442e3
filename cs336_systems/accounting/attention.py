"""Memory and arithmetic of one float32 attention, not causal, over T queries and keys of d dimensions.

B is the number of sequences, multiplied by the number of heads if there are heads.
"""


def scores_bytes(batch: int, seq_len: int) -> int:
    """Size of one T x T matrix per sequence: 4 BT^2."""
    return 4 * batch * seq_len**2


def course_kept_bytes(batch: int, seq_len: int, head_dim: int) -> int:
    """Bytes that the course's attention keeps for its backward: 8 BT^2 + 12 BTd + 12 BT.

    Its softmax is written out, so it keeps exp(scores) and the probabilities, q, k and v, and per row the index of the
    maximum (int64) and the sum.
    """
    return 2 * scores_bytes(batch, seq_len) + 12 * batch * seq_len * head_dim + 12 * batch * seq_len


def course_forward_peak_bytes(batch: int, seq_len: int) -> int:
    """Peak of the course's forward: 16 BT^2, for scaled scores, shifted scores, their exp and the probabilities."""
    return 4 * scores_bytes(batch, seq_len)


def kept_bytes(batch: int, seq_len: int, head_dim: int) -> int:
    """Bytes that attention with torch.softmax keeps: 4 BT^2 + 12 BTd, for the probabilities and q, k and v."""
    return scores_bytes(batch, seq_len) + 12 * batch * seq_len * head_dim


def flash_kept_bytes(batch: int, seq_len: int, head_dim: int) -> int:
    """Bytes that flash attention keeps: 16 BTd + 4 BT, for q, k, v, out and the log-sum-exp (Dao 2023, algorithm 1)."""
    return 16 * batch * seq_len * head_dim + 4 * batch * seq_len


def matmul_flops(batch: int, seq_len: int, head_dim: int) -> int:
    """FLOPs of the two matmuls, scores and output: 4 BT^2 d."""
    return 4 * batch * seq_len**2 * head_dim


def softmax_flops(batch: int, seq_len: int) -> int:
    """Approximate FLOPs of softmax: 5 BT^2, for maximum, difference, exp, sum and quotient."""
    return 5 * batch * seq_len**2
