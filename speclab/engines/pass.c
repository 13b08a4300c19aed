/* One pass of a decoder over m new tokens, in C: all that a step of decoding computes, in one file to read.

   A pass looks up the tokens' embeddings and runs them through layers. In each layer a token's query is held against
   the keys of all tokens that it may read, it takes a mean of their values, and a small network (the MLP) follows.
   Keys and values stay in pages of memory (the cache), so that the next pass reads them and computes none of them
   again. The last state of a token, times the output matrix, gives the logits of the token after it.

   Why five tokens cost little more than one: nearly all time goes into `multiply`. It reads a block of weights once
   and uses it for all tokens while it is in a register. Where reading is the limit, the other tokens are free.

   - A vector has L numbers, as many as a register of this processor. Rows of a matrix lie in blocks of L rows, column
     by column: one load gives a weight of L rows each, and no sum across a register is ever needed.
   - Weights are float32, bfloat16, or whole numbers of 8 or 4 bits with a scale (and a lowest value) for each group of
     columns. All sums are float32.
   - Threads share each step of a layer by its rows, and meet after it. Each output is one sum in one order, so that
     the result does not depend on the number of threads.

   It is called by c_pass.py; parts.py says which model has which of the parts below. */
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define L 16 /* numbers in a register, of which there are 32 */
#elif defined(__AVX2__)
#define L 8
#else
#define L 4
#endif
#define PAGE 64  /* tokens of one text in one page of the cache */
#define MOST 8   /* tokens whose sums are in registers at once */
#define CHUNK 16 /* blocks of a matrix that stay in the processor's cache while many tokens use them */
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * L)));
typedef int32_t ivec __attribute__((vector_size(4 * L)));
typedef uint32_t uvec __attribute__((vector_size(4 * L)));

int lanes(void) { return L; }
int page_tokens(void) { return PAGE; }
INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE float total(vec v) { float sum = 0; for (int i = 0; i < L; i++) sum += v[i]; return sum; }
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
INLINE long up_to(long n) { return (n + L - 1) / L * L; } /* whole registers for n numbers */

/* e to the x: 2 to a whole number, times a polynomial of what is left (Cephes). NaN stays NaN, below -87 comes 0. */
INLINE vec exponential(vec x) {
  const vec low = (vec){0} - 87.3f, high = (vec){0} + 88.3f, half = (vec){0} + 0.5f;
  vec clipped = choose(x < low, low, choose(x > high, high, x)), scaled = clipped * 1.44269504f;
  ivec n = __builtin_convertvector(scaled + choose(scaled < 0, -half, half), ivec);
  vec r = clipped - __builtin_convertvector(n, vec) * 0.693359375f + __builtin_convertvector(n, vec) * 2.12194440e-4f;
  const float parts[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                         4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  vec y = {0};
  UNROLL for (int i = 0; i < 6; i++) y = y * r + parts[i];
  y = (y * r * r + r + 1.0f) * (vec)((n + 127) << 23);
  return choose(x < low, (vec){0}, choose(x > high, (vec){0} + INFINITY, choose(x != x, x, y)));
}
INLINE vec hyperbolic_tangent(vec x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

/* ---- threads: OpenMP starts them, once for a whole pass; all meet after each step of it ---- */

typedef struct { atomic_int arrived, meeting; int n; } Team;
/* A thread that waits long gives its core away: beside other work, the one that it waits for may need it. */
static void meet(Team *team) {
  if (team->n == 1) return;
  int now = atomic_load_explicit(&team->meeting, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == team->n - 1) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team->meeting, now + 1, memory_order_release);
  } else
    for (int looks = 0; atomic_load_explicit(&team->meeting, memory_order_acquire) == now; looks++) {
#if defined(__x86_64__)
      __builtin_ia32_pause(); /* looking without a rest slows a thread that shares the core */
#endif
      if (looks > 500) sched_yield();
    }
}

/* ---- a product with a matrix ---- */

enum { FLOAT32, BFLOAT16, INT8, INT4 };
/* Words of 32 bits, L side by side, one for each row of a block: a word holds one, two, four or eight columns of its
   row, the first in its lowest bits. data: (blocks, columns / columns of a word, L). scale, low: (blocks, groups, L), a
   weight is number * scale + low, and only INT4 has low. group: columns that share them. bias: (rows) or NULL. */
typedef struct {
  int kind, columns, group;
  uint32_t *data;
  float *scale, *low, *bias;
} Matrix;

INLINE vec weights(const int kind, uvec words, const int k) { /* column k of each word */
  if (kind == FLOAT32) return (vec)words;
  if (kind == BFLOAT16) return (vec)(k ? words & 0xffff0000u : words << 16);
  if (kind == INT8) return __builtin_convertvector((ivec)(words << (24 - 8 * k)) >> 24, vec);
  return __builtin_convertvector((ivec)(words >> 4 * k & 15), vec);
}
INLINE uvec words_at(const Matrix *w, const int in_word, long block, long column) {
  uvec words;
  memcpy(&words, w->data + (block * w->columns + column) / in_word * L, sizeof words);
  return words;
}
/* out[i][block b] (+)= rows of blocks b .. b + T - 1, times x[i], for M tokens. M, T and kind are known where this is
   compiled, so all sums are in registers. */
INLINE void tile(const int M, const int T, const int kind, const Matrix *w, const float *x, long x_stride, long b,
                 float *out, long stride, int add) {
  const int N = 1 << kind; /* columns of a word */
  const long n = w->columns, group = kind >= INT8 ? w->group : n;
  vec sum[32];
  UNROLL for (int s = 0; s < T * M; s++) sum[s] = (vec){0};
  for (long j = 0, g = 0; j < n; g++) {
    vec part[32];
    float of_x[MOST];
    UNROLL for (int s = 0; s < T * M; s++) part[s] = (vec){0};
    UNROLL for (int i = 0; i < M; i++) of_x[i] = 0;
    for (const long end = j + group; j < end; j += N) {
      uvec words[8];
      UNROLL for (int t = 0; t < T; t++) words[t] = words_at(w, N, b + t, j);
      UNROLL for (int k = 0; k < N; k++) {
        const float *at = x + j + k;
        if (kind == INT4) UNROLL for (int i = 0; i < M; i++) of_x[i] += at[i * x_stride];
        UNROLL for (int t = 0; t < T; t++) {
          const vec v = weights(kind, words[t], k);
          UNROLL for (int i = 0; i < M; i++) part[t * M + i] += v * at[i * x_stride];
        }
      }
    }
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
      const long at = ((b + t) * (n / group) + g) * L;
      sum[t * M + i] += kind < INT8 ? part[t * M + i] : part[t * M + i] * load(w->scale + at);
      if (kind == INT4) sum[t * M + i] += load(w->low + at) * of_x[i];
    }
  }
  UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
    float *o = out + i * stride + t * L;
    if (w->bias) sum[t * M + i] += load(w->bias + (b + t) * L);
    store(o, add ? load(o) + sum[t * M + i] : sum[t * M + i]);
  }
}
/* As many blocks at once as there are registers for their sums: each sum waits for its own last addition alone, and
   reading is faster from several places at once. */
#if L == 16
#define BLOCKS(M) (M <= 2 ? 8 : M <= 6 ? 4 : 2)
#else
#define BLOCKS(M) (M == 1 ? 8 : M <= 3 ? 4 : M <= 6 ? 2 : 1)
#endif
#define TILES(M, T) \
  for (; b + T <= to; b += T) tile(M, T, kind, w, x, x_stride, b, out + (b - from) * L, stride, add);
#define TOKENS(M) \
  case M: \
    TILES(M, BLOCKS(M)) \
    if (BLOCKS(M) == 8) TILES(M, 4) \
    TILES(M, 1) \
    break;
INLINE void product(const int kind, const Matrix *w, const float *x, long x_stride, int m, long from, long to,
                    float *out, long stride, int add) {
  long b = from;
  switch (m) { TOKENS(1) TOKENS(2) TOKENS(3) TOKENS(4) TOKENS(5) TOKENS(6) TOKENS(7) TOKENS(8) }
}
/* To compile each kind takes a while: KINDS says which ones, bit by bit. */
#define OF(kind) \
  case kind: if (KINDS >> kind & 1) product(kind, w, x + i * x_stride, x_stride, n, b, end, to_row, stride, add); break;
/* out (m, stride) (+)= x (m, x_stride) times the rows of blocks from .. to - 1, the first of which goes to out[0]. */
static void multiply(const Matrix *w, const float *x, long x_stride, int m, long from, long to, float *out, long stride,
                     int add) {
  const long most = m <= MOST ? to - from : CHUNK;
  for (long b = from; b < to; b += most)
    for (int i = 0; i < m; i += MOST) {
      const int n = m - i < MOST ? m - i : MOST;
      const long end = b + most < to ? b + most : to;
      float *to_row = out + i * stride + (b - from) * L;
      switch (w->kind) { OF(FLOAT32) OF(BFLOAT16) OF(INT8) OF(INT4) }
    }
}

/* ---- the parts of a layer ---- */

typedef struct { float *gain, *shift; } Norm; /* gain NULL: there is no such norm. shift NULL: nothing is added */
typedef struct {
  Norm before_attention, after_attention, before_mlp, after_mlp, queries, keys;
  Matrix qkv, out, up, down;     /* up: alternating blocks of the gate and of the other factor, where there is a gate */
  const float *cosines, *sines; /* (positions, turned / 2), NULL: no rotary positions */
  int window;                   /* tokens that one reads at most, itself included; 0: all */
} Layer;
typedef struct {
  int layers, hidden, heads, kv_heads, head_size, mlp, turned, ids, known; /* turned: numbers of a head that are rotated; known: ids with an embedding */
  int centred, whole_norms, gated, activation, parallel; /* norms of layers, of all queries; attention beside the MLP */
  int beside, start_normed; /* a draft's head reads embeddings beside states, and may begin with a norm of these */
  float epsilon, attention_scale, attention_cap, logit_cap, embedding_scale;
  const float *embeddings, *places; /* (ids, hidden), (positions, hidden) or NULL */
  Norm last, states;
  Matrix head;
  Layer *layer;
} Model;
/* ids or states may be NULL. text, position, row, whole: (m) of each token its text, its position, its row in the
   text's cache, and how many first rows it reads. mask: (m, masked), which of the rows after these it reads, or NULL.
   pages: of each text. outputs: (layers), where the states after a layer go, or NULL. wanted: (n_logits) the tokens
   whose logits are wanted. scratch: floats_needed() numbers. */
typedef struct {
  Model *model;
  int m, first, end; /* layers first .. end - 1 */
  const int64_t *ids;
  const float *states;
  const int32_t *text, *position, *row, *whole;
  const uint8_t *mask;
  int masked;
  float ***pages, **outputs;
  int n_logits;
  const int32_t *wanted;
  float *logits, *scratch;
} Pass;

/* Keys of a page: (PAGE / L, head size, L), so that L keys meet a query at once; values: (PAGE, head size). */
static long page_part(const Model *M) { return PAGE * (M->head_size + up_to(M->head_size)); }
long page_floats(const Model *M) { return M->layers * M->kv_heads * page_part(M); }
static float *page_of(const Model *M, float *page, int l, int g) { return page + (l * M->kv_heads + g) * page_part(M); }
static float *key_at(const Model *M, float *part, int r) {
  return part + (long)(r % PAGE / L) * M->head_size * L + r % L;
}
static float *value_at(const Model *M, float *part, int r) {
  return part + PAGE * M->head_size + r % PAGE * up_to(M->head_size);
}
typedef struct { long hidden, qkv, queries, mlp; } Widths; /* of rows, in whole registers */
static Widths widths_of(const Model *M) {
  const long D = M->head_size;
  return (Widths){up_to(M->hidden), up_to((M->heads + 2 * M->kv_heads) * D), up_to(M->heads * D), up_to(M->mlp)};
}
long floats_needed(const Model *M, int m) {
  const Widths W = widths_of(M);
  return m * (2 * W.hidden + W.qkv + 2 * W.queries + W.mlp);
}
static void normalise(const Model *M, Norm norm, const float *x, int n, float *out) {
  if (!norm.gain) { memmove(out, x, n * sizeof *x); return; }
  float mean = 0;
  if (M->centred) for (int j = 0; j < n; j++) mean += x[j] / n;
  vec squares = {0};
  int j = 0;
  for (; j + L <= n; j += L) { vec v = load(x + j) - mean; squares += v * v; }
  float square = total(squares);
  for (; j < n; j++) square += (x[j] - mean) * (x[j] - mean);
  const float scale = 1.0f / sqrtf(square / n + M->epsilon);
  for (j = 0; j < n; j++) out[j] = (x[j] - mean) * scale * norm.gain[j] + (norm.shift ? norm.shift[j] : 0);
}
static vec activated(const Model *M, vec x) {
  enum { SILU, GELU, GELU_TANH };
  if (M->activation == SILU) return x / (1.0f + exponential(-x));
  if (M->activation == GELU_TANH)
    return 0.5f * x * (1.0f + hyperbolic_tangent(0.7978845608f * (x + 0.044715f * x * x * x)));
  for (int i = 0; i < L; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067812f));
  return x;
}
/* The mean of the values that a query reads, weighted by e to the product of query and key. pages: of the text. The
   first `whole` rows are read, and of the n_more rows after them those that the mask names. */
static void attend(const Model *M, int l, int g, float **pages, const float *query, int whole, const uint8_t *mask,
                   int n_more, float *scores, float *out) {
  const int D = M->head_size, end = whole + n_more;
  int begin = 0;
  if (M->layer[l].window) { /* it reads the last ones of its rows, so many */
    int left = M->layer[l].window;
    for (begin = end; begin > whole && left; begin--) left -= mask[begin - 1 - whole];
    if (begin == whole) begin = whole > left ? whole - left : 0;
  }
  const int first = begin / PAGE * PAGE, n = end - first; /* scores are of the rows from `first` on */
  for (int r = first; r < end; r += PAGE) {
    const float *keys = page_of(M, pages[r / PAGE], l, g);
    vec s[PAGE / L];
    UNROLL for (int b = 0; b < PAGE / L; b++) s[b] = (vec){0};
    for (int d = 0; d < D; d++)
      UNROLL for (int b = 0; b < PAGE / L; b++) s[b] += load(keys + (b * D + d) * L) * query[d];
    UNROLL for (int b = 0; b < PAGE / L; b++) {
      if (M->attention_cap > 0) s[b] = M->attention_cap * hyperbolic_tangent(s[b] / M->attention_cap);
      store(scores + r - first + b * L, s[b]);
    }
  }
  for (int r = first; r < begin; r++) scores[r - first] = -INFINITY;
  for (int r = whole > begin ? whole : begin; r < end; r++) if (!mask[r - whole]) scores[r - first] = -INFINITY;
  for (int r = end; r < first + up_to(n); r++) scores[r - first] = -INFINITY;
  vec highest = (vec){0} - INFINITY, sums = {0};
  for (int r = 0; r < n; r += L) { vec s = load(scores + r); highest = choose(s > highest, s, highest); }
  float top = -INFINITY;
  for (int i = 0; i < L; i++) top = highest[i] > top ? highest[i] : top;
  if (top == -INFINITY) top = 0; /* a token that reads nothing is padding: its output is 0; NaN stays NaN */
  for (int r = 0; r < n; r += L) {
    vec e = exponential(load(scores + r) - top);
    store(scores + r, e), sums += e;
  }
  const float sum = total(sums), scale = sum == 0 ? 0 : 1 / sum;
  for (int from = 0; from < D; from += 4 * L) {
    const int parts = up_to(D - from) / L < 4 ? up_to(D - from) / L : 4;
    vec mean[4] = {{0}};
    for (int r = begin; r < end; r++) {
      if (scores[r - first] == 0) continue; /* what it does not read may hold anything */
      const float *values = value_at(M, page_of(M, pages[r / PAGE], l, g), r) + from;
      for (int b = 0; b < parts; b++) mean[b] += load(values + b * L) * scores[r - first];
    }
    for (int d = 0; d < D - from && d < 4 * L; d++) out[from + d] = mean[d / L][d % L] * scale;
  }
}

/* ---- a pass ---- */

#define PART(total, from, to) const long from = (total) * me / n, to = (total) * (me + 1) / n
/* A product's rows go into the residual stream: at once, or after a norm. y: where they are until then. */
static void into_stream(const Model *M, const Matrix *w, Norm after, const float *x, long x_stride, int m,
                        float *stream, float *y, long hidden, int me, Team *team) {
  const int n = team->n;
  PART(up_to(hidden) / L, from, to);
  multiply(w, x, x_stride, m, from, to, (after.gain ? y : stream) + from * L, hidden, !after.gain);
  meet(team);
  if (!after.gain) return;
  PART((long)m, a, b);
  for (long i = a; i < b; i++) {
    normalise(M, after, y + i * hidden, M->hidden, y + i * hidden);
    for (int j = 0; j < M->hidden; j++) stream[i * hidden + j] += y[i * hidden + j];
  }
  meet(team);
}
static void embed(const Pass *P, const Model *M, long i, float *out) {
  const float *row = P->ids ? M->embeddings + P->ids[i] * M->hidden : NULL;
  const float *place = M->places ? M->places + (long)P->position[i] * M->hidden : NULL;
  if (P->states) normalise(M, M->start_normed ? M->states : (Norm){0}, P->states + i * M->hidden, M->hidden, out);
  else for (int j = 0; j < M->hidden; j++) out[j] = row[j] * M->embedding_scale + (place ? place[j] : 0);
}
/* Head h of a token, queries first: it is normalised and turned to the token's position. A query is scaled; a key goes to
   the token's row in the cache, with its value. */
static void spread(const Pass *P, const Model *M, int l, long i, int h, const float *raw, float *queries) {
  const Layer *layer = M->layer + l;
  const int D = M->head_size, half = M->turned / 2, g = h - M->heads;
  float head[D];
  normalise(M, M->whole_norms ? (Norm){0} : g < 0 ? layer->queries : layer->keys, raw + h * D, D, head);
  if (layer->cosines) {
    const float *c = layer->cosines + (long)P->position[i] * half, *s = layer->sines + (long)P->position[i] * half;
    for (int d = 0; d < half; d++) {
      const float a = head[d], b = head[d + half];
      head[d] = a * c[d] - b * s[d], head[d + half] = b * c[d] + a * s[d];
    }
  }
  if (g < 0) {
    for (int d = 0; d < D; d++) queries[h * D + d] = head[d] * M->attention_scale;
    return;
  }
  float *part = page_of(M, P->pages[P->text[i]][P->row[i] / PAGE], l, g), *key = key_at(M, part, P->row[i]);
  for (int d = 0; d < D; d++) key[d * L] = head[d];
  memcpy(value_at(M, part, P->row[i]), raw + (h + M->kv_heads) * D, D * sizeof(float));
}
static void run_pass(const Pass *P, int me, Team *team) {
  const int n = team->n;
  const Model *M = P->model;
  const int m = P->m, D = M->head_size, H = M->hidden;
  const Widths W = widths_of(M);
  float *stream = P->scratch, *y = stream + m * W.hidden, *raw = y + m * W.hidden; /* of all threads */
  float *queries = raw + m * W.qkv, *attended = queries + m * W.queries, *inner = attended + m * W.queries;
  long rows = 0;
  for (int i = 0; i < m; i++) rows = P->whole[i] > rows ? P->whole[i] : rows;
  rows += P->masked + 2 * PAGE; /* scores of whole pages */
  const long input = M->beside ? 2 * W.hidden : W.hidden, most = m > P->n_logits ? m : P->n_logits;
  float *x = malloc(sizeof(float) * ((input + W.hidden + CHUNK * L) * most + rows)); /* of this thread alone */
  float *normed = x + most * input, *factors = normed + most * W.hidden, *scores = factors + most * CHUNK * L;
  PART((long)m, mine, not_mine);
  for (long i = mine; i < not_mine; i++) embed(P, M, i, stream + i * W.hidden);
  meet(team);
  for (int l = P->first; l < P->end; l++) {
    const Layer *layer = M->layer + l;
    for (int i = 0; i < m; i++) { /* each thread makes all norms for itself: to meet takes longer */
      const float *before = M->beside ? M->embeddings + P->ids[i] * H : stream + i * W.hidden;
      normalise(M, layer->before_attention, before, H, x + i * input);
      if (M->beside) normalise(M, M->states, P->states + (long)i * H, H, x + i * input + H);
      if (M->parallel) normalise(M, layer->before_mlp, stream + i * W.hidden, H, normed + i * W.hidden);
    }
    PART(up_to(W.qkv) / L, q0, q1);
    multiply(&layer->qkv, x, input, m, q0, q1, raw + q0 * L, W.qkv, 0);
    meet(team);
    if (M->whole_norms) { /* one mean is over all heads */
      for (long i = mine; i < not_mine; i++) {
        float *of_queries = raw + i * W.qkv, *of_keys = of_queries + M->heads * D;
        normalise(M, layer->queries, of_queries, M->heads * D, of_queries);
        normalise(M, layer->keys, of_keys, M->kv_heads * D, of_keys);
      }
      meet(team);
    }
    PART((long)m * (M->heads + M->kv_heads), s0, s1);
    for (long u = s0; u < s1; u++) spread(P, M, l, u % m, u / m, raw + u % m * W.qkv, queries + u % m * W.queries);
    meet(team);
    PART((long)m * M->heads, a0, a1);
    for (long u = a0; u < a1; u++) {
      const long i = u % m, h = u / m, at = i * W.queries + h * D;
      attend(M, l, h * M->kv_heads / M->heads, P->pages[P->text[i]], queries + at, P->whole[i],
             P->mask ? P->mask + i * P->masked : NULL, P->masked, scores, attended + at);
    }
    meet(team);
    into_stream(M, &layer->out, layer->after_attention, attended, W.queries, m, stream, y, W.hidden, me, team);
    if (!M->parallel)
      for (int i = 0; i < m; i++) normalise(M, layer->before_mlp, stream + i * W.hidden, H, normed + i * W.hidden);
    const long each = M->gated ? 2 : 1;
    PART(up_to(W.mlp) / L, m0, m1);
    for (long k = m0, next; k < m1; k = next) { /* some blocks at once, whose factors stay in the cache */
      next = k + CHUNK / each < m1 ? k + CHUNK / each : m1;
      multiply(&layer->up, normed, W.hidden, m, k * each, next * each, factors, CHUNK * L, 0);
      for (int i = 0; i < m; i++)
        for (long j = k; j < next; j++) {
          const float *of = factors + (i * CHUNK + (j - k) * each) * L;
          store(inner + i * W.mlp + j * L, M->gated ? activated(M, load(of)) * load(of + L) : activated(M, load(of)));
        }
    }
    meet(team);
    into_stream(M, &layer->down, layer->after_mlp, inner, W.mlp, m, stream, y, W.hidden, me, team);
    if (P->outputs[l])
      for (long i = mine; i < not_mine; i++) memcpy(P->outputs[l] + i * H, stream + i * W.hidden, H * sizeof(float));
  }
  for (int i = 0; i < P->n_logits; i++) normalise(M, M->last, stream + P->wanted[i] * W.hidden, H, x + i * W.hidden);
  PART(up_to(P->n_logits ? M->ids : 0) / L, o0, o1);
  multiply(&M->head, x, W.hidden, P->n_logits, o0, o1, P->logits + o0 * L, up_to(M->ids), 0);
  for (long j = o0 * L; M->logit_cap > 0 && j < o1 * L; j += L)
    for (int i = 0; i < P->n_logits; i++) {
      float *o = P->logits + i * up_to(M->ids) + j;
      store(o, M->logit_cap * hyperbolic_tangent(load(o) / M->logit_cap));
    }
  free(x);
}
/* Returns 0, and does nothing, where an id has no embedding. */
int forward(const Pass *P, int threads) {
  for (int i = 0; P->ids && i < P->m; i++) if ((uint64_t)P->ids[i] >= (uint64_t)P->model->known) return 0;
  Team team = {.n = 1};
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    team.n = omp_get_num_threads();
    run_pass(P, omp_get_thread_num(), &team);
  }
#else
  run_pass(P, 0, &team);
#endif
  return 1;
}

/* k passes over one text, each over the most probable one of the first n ids after the pass before: the first among
   equals, one that is no number before all. tokens, highest: (k) these ids and their logits. */
int chain(Pass *P, int threads, int k, int n, int64_t *tokens, float *highest) {
  for (int i = 0; i < k; i++) {
    if (!forward(P, threads)) return 0;
    int best = 0;
    for (int j = 1; j < n; j++) if (P->logits[j] > P->logits[best] || P->logits[j] != P->logits[j]) best = j;
    tokens[i] = best, highest[i] = P->logits[best];
    P->ids = tokens + i, P->wanted = P->text; /* of one text, all zeros */
    P->position += P->m, P->row += P->m, P->whole += P->m, P->m = 1;
  }
  return 1;
}

/* Copy the keys and values of one row of a text over those of another one, in all layers. */
void move(const Model *M, float **pages, int from, int to) {
  for (int u = 0; u < M->layers * M->kv_heads; u++) {
    float *a = pages[from / PAGE] + u * page_part(M), *b = pages[to / PAGE] + u * page_part(M);
    for (int d = 0; d < M->head_size; d++) key_at(M, b, to)[d * L] = key_at(M, a, from)[d * L];
    memcpy(value_at(M, b, to), value_at(M, a, from), M->head_size * sizeof(float));
  }
}
