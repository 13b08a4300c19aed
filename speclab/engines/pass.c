/* One pass of a decoder over m new tokens, in C: the whole of what a step of decoding computes, in one file to read.

   A pass takes the tokens' ids, looks up their embeddings, and runs them through layers. In each layer a token's
   query looks at the keys of all tokens that it may read, takes a mean of their values, and a small network (the MLP)
   follows. Keys and values stay in pages of memory (the cache), so that the next pass reads them and computes none of
   them again. The last state of a token, times the output matrix, gives the logits of the token after it.

   Why five tokens cost little more than one: nearly all time goes into `multiply`. It reads a block of weights once
   and uses it for all m tokens while it is in a register. Where reading is the limit, the other tokens are free.

   How it is laid out:
   - a vector has L numbers, as many as a register of this processor. Rows of a matrix are stored in blocks of L rows,
     column by column: one load gives L weights, one for each row, and no sum across a register is ever needed;
   - weights are kept as float32, as bfloat16, as whole numbers of 8 bits or of 4 bits with a scale (and a lowest
     value) for each 32 columns. All sums are made in float32;
   - threads share each step of a layer by its rows, and meet after it. Each output has one sum in one order, so the
     result does not depend on the number of threads.

   It is called by c_pass.py, which says what every model has of the parts below. */
#include <math.h>
#include <pthread.h>
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
#define PAGE 64   /* tokens of one text in one page of the cache */
#define MOST 8    /* tokens whose sums are in registers at once */
#define CHUNK 16  /* blocks of a matrix that stay in the processor's cache while many tokens use them */
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

/* e to the x: 2 to the nearest whole n, times a polynomial of what is left. NaN stays NaN, below -87 comes 0. */
INLINE vec exponential(vec x) {
  const vec low = (vec){0} - 87.3f, high = (vec){0} + 88.3f;
  vec clipped = choose(x < low, low, choose(x > high, high, x));
  vec scaled = clipped * 1.44269504f;
  ivec n = __builtin_convertvector(scaled + choose(scaled < 0, (vec){0} - 0.5f, (vec){0} + 0.5f), ivec);
  vec whole = __builtin_convertvector(n, vec);
  vec r = clipped - whole * 0.693359375f - whole * -2.12194440e-4f;
  vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f; y = y * r + 4.1665795894e-2f; y = y * r + 1.6666665459e-1f; y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  y = y * (vec)((n + 127) << 23);
  return choose(x < low, (vec){0}, choose(x > high, (vec){0} + INFINITY, choose(x != x, x, y)));
}
INLINE vec hyperbolic_tangent(vec x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

/* ---- threads: the caller is number 0; the others wait for a job, and all meet after each step of it ---- */

typedef void (*work_of)(void *what, int me, int n); /* the part of thread `me` among n */
static struct {
  pthread_mutex_t calling, lock;
  pthread_cond_t bell;
  atomic_int job, at_work, arrived, meeting;
  int threads, n; /* that wait for jobs; that share the present one, the caller included */
  work_of work;
  void *what;
} team = {.calling = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .bell = PTHREAD_COND_INITIALIZER};

/* Looking again and again keeps a core busy, and where two threads share one, the other one slow: so a look rests. A
   thread that waits long gives its core away: beside other work, the one that it waits for may need it. */
static void rest(int looks) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (looks > 500) sched_yield();
}
static void meet(int n) {
  if (n == 1) return;
  int now = atomic_load_explicit(&team.meeting, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&team.arrived, 1, memory_order_acq_rel) == n - 1) {
    atomic_store_explicit(&team.arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team.meeting, now + 1, memory_order_release);
  } else
    for (int looks = 0; atomic_load_explicit(&team.meeting, memory_order_acquire) == now; looks++) rest(looks);
}
static void *wait_for_jobs(void *number) {
  int me = (int)(intptr_t)number, seen = atomic_load(&team.job);
  atomic_fetch_sub(&team.at_work, 1); /* it is ready */
  for (;;) {
    /* The next pass of a decoding comes soon, and to be woken takes longer than to look. */
    for (int looks = 0; looks < 5000 && atomic_load_explicit(&team.job, memory_order_acquire) == seen; looks++) rest(looks);
    pthread_mutex_lock(&team.lock);
    while (atomic_load(&team.job) == seen) pthread_cond_wait(&team.bell, &team.lock);
    pthread_mutex_unlock(&team.lock);
    seen++;
    if (me < team.n) team.work(team.what, me, team.n);
    atomic_fetch_sub(&team.at_work, 1);
  }
  return NULL;
}
static void wait_for_all(void) {
  for (int looks = 0; atomic_load_explicit(&team.at_work, memory_order_acquire); looks++) rest(looks);
}
static void forget_threads(void) { /* a forked process has none of them */
  const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  team.threads = 0, team.calling = team.lock = fresh;
}
/* Run the work in n threads, and return when all are done. */
static void together(int n, work_of work, void *what) {
  pthread_mutex_lock(&team.calling);
  if (team.threads == 0) pthread_atfork(NULL, NULL, forget_threads);
  for (pthread_t thread; team.threads < n - 1; team.threads++) {
    atomic_store(&team.at_work, 1);
    if (pthread_create(&thread, NULL, wait_for_jobs, (void *)(intptr_t)(team.threads + 1))) break;
    wait_for_all();
  }
  if (n > team.threads + 1) n = team.threads + 1;
  if (n == 1) work(what, 0, 1);
  else {
    pthread_mutex_lock(&team.lock);
    team.work = work, team.what = what, team.n = n;
    atomic_store(&team.at_work, team.threads);
    atomic_fetch_add(&team.job, 1);
    pthread_cond_broadcast(&team.bell);
    pthread_mutex_unlock(&team.lock);
    work(what, 0, n);
    wait_for_all();
  }
  pthread_mutex_unlock(&team.calling);
}

/* ---- a product with a matrix ---- */

enum { FLOAT32, BFLOAT16, INT8, INT4 };
/* Words of 32 bits, L side by side, one for each row of a block: a word holds one, two, four or eight columns of its
   row, the first in its lowest bits. data: (blocks, columns / columns of a word, L). scale, low: (blocks, groups, L), a
   weight is number * scale + low, and low is only of INT4. group: columns that share them. bias: (rows) or NULL. */
typedef struct { int kind, columns, group; uint32_t *data; float *scale, *low, *bias; } Matrix;
#define IN_WORD(kind) (1 << (kind))

INLINE vec weights(const int kind, uvec words, const int k) { /* column k of each word */
  if (kind == FLOAT32) return (vec)words;
  if (kind == BFLOAT16) return (vec)(k ? words & 0xffff0000u : words << 16);
  if (kind == INT8) return __builtin_convertvector((ivec)(words << (24 - 8 * k)) >> 24, vec);
  return __builtin_convertvector((ivec)(words >> 4 * k & 15), vec);
}
/* out[i][block b] (+)= rows of blocks b .. b + T - 1, times x[i], for M tokens. U: sums of one output that run side by
   side, where there are few outputs: an addition takes longer than the time until the next one could begin. */
INLINE void tile(const int M, const int T, const int U, const int kind, const Matrix *w, const float *x, long x_stride, long b, float *out, long stride, int add) {
  const int N = IN_WORD(kind), step = U > N ? U : N;
  const long n = w->columns, group = kind >= INT8 ? w->group : n;
  vec sum[32];
  UNROLL for (int s = 0; s < T * M; s++) sum[s] = (vec){0};
  for (long j = 0, end = group, g = 0; j < n; end += group, g++) {
    vec part[32];
    float of_x[MOST];
    UNROLL for (int s = 0; s < U * T * M; s++) part[s] = (vec){0};
    UNROLL for (int i = 0; i < M; i++) of_x[i] = 0;
    for (; j + step <= end; j += step)
      UNROLL for (int c = 0; c < step; c += N) {
        uvec words[8];
        UNROLL for (int t = 0; t < T; t++) memcpy(&words[t], w->data + ((b + t) * n + j + c) / N * L, sizeof *words);
        UNROLL for (int k = 0; k < N; k++) {
          if (kind == INT4) UNROLL for (int i = 0; i < M; i++) of_x[i] += x[i * x_stride + j + c + k];
          UNROLL for (int t = 0; t < T; t++) {
            const vec v = weights(kind, words[t], k);
            UNROLL for (int i = 0; i < M; i++) part[((c + k) % U * T + t) * M + i] += v * x[i * x_stride + j + c + k];
          }
        }
      }
    for (; j < end; j++) /* columns that are left over */
      UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++)
        for (int k = 0; k < N; k++) if (j % N == k) {
          uvec words; memcpy(&words, w->data + ((b + t) * n + j) / N * L, sizeof words);
          part[t * M + i] += weights(kind, words, k) * x[i * x_stride + j];
        }
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
      UNROLL for (int u = 1; u < U; u++) part[t * M + i] += part[(u * T + t) * M + i];
      const long at = ((b + t) * (n / group) + g) * L;
      if (kind < INT8) sum[t * M + i] = part[t * M + i];
      else sum[t * M + i] += part[t * M + i] * load(w->scale + at);
      if (kind == INT4) sum[t * M + i] += load(w->low + at) * of_x[i];
    }
  }
  UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
    float *o = out + i * stride + t * L;
    if (w->bias) sum[t * M + i] += load(w->bias + (b + t) * L);
    store(o, add ? load(o) + sum[t * M + i] : sum[t * M + i]);
  }
}
#if L == 16 /* as many blocks as there are registers for their sums: reading is faster from several places at once */
#define BLOCKS(M) (M <= 2 ? 8 : M <= 6 ? 4 : 2)
#else
#define BLOCKS(M) (M == 1 ? 8 : M <= 3 ? 4 : M <= 6 ? 2 : 1)
#endif
#define RUN(M, kind) case M: \
  for (; b + BLOCKS(M) <= to; b += BLOCKS(M)) tile(M, BLOCKS(M), 1, kind, w, x, x_stride, b, out + (b - from) * L, stride, add); \
  for (; b < to; b++) tile(M, 1, M == 1 ? 8 : 1, kind, w, x, x_stride, b, out + (b - from) * L, stride, add); break;
#define PRODUCT(name, kind) static void name(const Matrix *w, const float *x, long x_stride, int m, long from, long to, float *out, long stride, int add) { \
  long b = from; switch (m) { RUN(1, kind) RUN(2, kind) RUN(3, kind) RUN(4, kind) RUN(5, kind) RUN(6, kind) RUN(7, kind) RUN(8, kind) } }
/* To compile each kind takes a while: KINDS says which ones, bit by bit. */
#if KINDS & 1
PRODUCT(product_float32, FLOAT32)
#else
#define product_float32 NULL
#endif
#if KINDS & 2
PRODUCT(product_bfloat16, BFLOAT16)
#else
#define product_bfloat16 NULL
#endif
#if KINDS & 4
PRODUCT(product_int8, INT8)
#else
#define product_int8 NULL
#endif
#if KINDS & 8
PRODUCT(product_int4, INT4)
#else
#define product_int4 NULL
#endif
/* out (m, stride) (+)= x (m, x_stride) times the rows of blocks from .. to - 1; the first one goes to out[0]. */
static void multiply(const Matrix *w, const float *x, long x_stride, int m, long from, long to, float *out, long stride, int add) {
  void (*const product[])(const Matrix *, const float *, long, int, long, long, float *, long, int) = {product_float32, product_bfloat16, product_int8, product_int4};
  if (m <= MOST) { product[w->kind](w, x, x_stride, m, from, to, out, stride, add); return; }
  for (long b = from, next; b < to; b = next) { /* a few blocks stay in the cache while all tokens use them */
    next = b + CHUNK < to ? b + CHUNK : to;
    for (int i = 0; i < m; i += MOST)
      product[w->kind](w, x + i * x_stride, x_stride, m - i < MOST ? m - i : MOST, b, next, out + i * stride + (b - from) * L, stride, add);
  }
}

/* ---- the parts of a layer ---- */

typedef struct { float *gain, *shift; } Norm; /* gain NULL: there is no such norm. shift NULL: nothing is added */
typedef struct {
  Norm before_attention, after_attention, before_mlp, after_mlp, queries, keys;
  Matrix qkv, out, up, down; /* up: blocks of the gate and of the other factor in turns, where the MLP has a gate */
  const float *cosines, *sines; /* (positions, turned / 2), NULL: no rotary positions */
  int window; /* tokens that one reads at most, itself included; 0: all */
} Layer;
typedef struct {
  int layers, hidden, heads, kv_heads, head_size, mlp, turned, ids; /* turned: numbers of a head that are rotated */
  int centred, whole_norms, gated, activation, parallel; /* norms: of layers, of all queries; attention and MLP side by side */
  int beside, start_normed; /* a draft's head reads embeddings beside states */
  float epsilon, attention_scale, attention_cap, logit_cap, embedding_scale;
  const float *embeddings, *places; /* (ids, hidden), (positions, hidden) or NULL */
  Norm last, states;
  Matrix head;
  Layer *layer;
} Model;
/* A pass. ids or states may be NULL. text, position, row, whole: (m) of each token its text, its position, its row in
   the text's cache, and the number of first rows that it reads. mask: (m, masked), which of the rows after these it
   reads, or NULL. pages: of each text. outputs: (layers), where to put the states after a layer, or NULL.
   wanted: (n_logits) the tokens whose logits are wanted. scratch: floats_needed() numbers. */
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

enum { SILU, GELU, GELU_TANH, RELU };
INLINE long up_to(long n) { return (n + L - 1) / L * L; }
long page_floats(const Model *M) { return (long)M->layers * M->kv_heads * PAGE * (M->head_size + up_to(M->head_size)); }
static float *page_of(const Model *M, float *page, int layer, int head) {
  return page + (long)(layer * M->kv_heads + head) * PAGE * (M->head_size + up_to(M->head_size));
}
static long widths(const Model *M, long *hidden, long *qkv, long *queries, long *mlp) { /* of rows, in whole registers */
  *hidden = up_to(M->hidden), *queries = up_to((long)M->heads * M->head_size), *mlp = up_to(M->mlp);
  *qkv = up_to((long)(M->heads + 2 * M->kv_heads) * M->head_size);
  return 2 * *hidden + *qkv + 2 * *queries + *mlp;
}
long floats_needed(const Model *M, int m) { long a, b, c, d; return m * widths(M, &a, &b, &c, &d) + 4 * L; }

static void normalise(const Model *M, Norm norm, const float *x, int n, float *out) {
  if (!norm.gain) { memmove(out, x, n * sizeof *x); return; }
  float mean = 0, square = 0;
  if (M->centred) { for (int j = 0; j < n; j++) mean += x[j]; mean /= n; }
  vec squares = {0};
  int j = 0;
  for (; j + L <= n; j += L) { vec v = load(x + j) - mean; squares += v * v; }
  for (square = total(squares); j < n; j++) square += (x[j] - mean) * (x[j] - mean);
  const float scale = 1.0f / sqrtf(square / n + M->epsilon);
  for (j = 0; j < n; j++) out[j] = (x[j] - mean) * scale * norm.gain[j] + (norm.shift ? norm.shift[j] : 0);
}
static vec activated(const Model *M, vec x) {
  switch (M->activation) {
    case SILU: return x / (1.0f + exponential(-x));
    case GELU_TANH: return 0.5f * x * (1.0f + hyperbolic_tangent(0.7978845608f * (x + 0.044715f * x * x * x)));
    case RELU: return choose(x < 0, (vec){0}, x);
  }
  for (int i = 0; i < L; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067812f));
  return x;
}
/* One head of one token: normalised, and turned to its position. raw: all heads of the row, of which this is number h. */
static void turn(const Model *M, const Layer *layer, Norm norm, const float *raw, int h, int heads, int position, float *out) {
  const int D = M->head_size, half = M->turned / 2;
  if (norm.gain && M->whole_norms) { /* one mean over all heads */
    float square = 0;
    for (int j = 0; j < heads * D; j++) square += raw[j] * raw[j];
    const float scale = 1.0f / sqrtf(square / (heads * D) + M->epsilon);
    for (int d = 0; d < D; d++) out[d] = raw[h * D + d] * scale * norm.gain[h * D + d];
  } else normalise(M, norm, raw + h * D, D, out);
  if (layer->cosines)
    for (int d = 0; d < half; d++) {
      const float c = layer->cosines[(long)position * half + d], s = layer->sines[(long)position * half + d];
      const float a = out[d], b = out[d + half];
      out[d] = a * c - b * s, out[d + half] = b * c + a * s;
    }
}
/* The mean of the values that a query reads, weighted by e to the product of query and key.
   pages: of the text, at this layer and head. Rows up to `whole` are read, and after them those that the mask names. */
static void attend(const Model *M, int l, int g, float **pages, const float *query, int whole, const uint8_t *mask, int masked, float *scores, float *out) {
  const int D = M->head_size, window = M->layer[l].window, end = whole + (mask ? masked : 0);
  int begin = 0;
  if (window) { /* the last `window` of the rows that it reads */
    int left = window;
    for (begin = end; begin > whole && left; begin--) left -= mask[begin - 1 - whole];
    if (begin == whole) begin = whole > left ? whole - left : 0;
  }
  const int first = begin / PAGE * PAGE;
  vec highest = (vec){0} - INFINITY;
  for (int r = first; r < end; r += PAGE) {
    const float *keys = page_of(M, pages[r / PAGE], l, g);
    vec s[PAGE / L];
    UNROLL for (int b = 0; b < PAGE / L; b++) s[b] = (vec){0};
    for (int d = 0; d < D; d++) UNROLL for (int b = 0; b < PAGE / L; b++) s[b] += load(keys + ((long)b * D + d) * L) * query[d];
    UNROLL for (int b = 0; b < PAGE / L; b++) {
      if (M->attention_cap > 0) s[b] = M->attention_cap * hyperbolic_tangent(s[b] / M->attention_cap);
      store(scores + r - first + b * L, s[b]);
    }
  }
  const int n = end - first;
  for (int r = 0; r < begin - first; r++) scores[r] = -INFINITY;
  for (int r = end > whole ? (whole > begin ? whole : begin) : end; r < end; r++) if (!mask[r - whole]) scores[r - first] = -INFINITY;
  for (int r = n; r < up_to(n); r++) scores[r] = -INFINITY;
  for (int r = 0; r < n; r += L) { vec s = load(scores + r); highest = choose(s > highest, s, highest); }
  float top = -INFINITY;
  for (int i = 0; i < L; i++) if (highest[i] > top) top = highest[i];
  vec sums = {0};
  for (int r = 0; r < n; r += L) { /* a token that reads nothing is padding: its output is 0 */
    vec e = top == -INFINITY ? (vec){0} : exponential(load(scores + r) - top);
    store(scores + r, e), sums += e;
  }
  const float sum = total(sums), scale = sum == 0 ? 0 : 1 / sum;
  for (int from = 0; from < D; from += 4 * L) {
    const int parts = (int)(up_to(D - from) / L) < 4 ? (int)(up_to(D - from) / L) : 4;
    vec mean[4] = {{0}};
    for (int r = begin; r < end; r++) {
      const float weight = scores[r - first];
      if (weight == 0) continue; /* what it does not read may hold anything */
      const float *values = page_of(M, pages[r / PAGE], l, g) + (long)PAGE * D + (r % PAGE) * up_to(D) + from;
      for (int b = 0; b < parts; b++) mean[b] += load(values + b * L) * weight;
    }
    for (int d = 0; d < D - from && d < 4 * L; d++) out[from + d] = mean[d / L][d % L] * scale;
  }
}

/* ---- a pass ---- */

#define PART(total, from, to) const long from = (long)(total) * me / n, to = (long)(total) * (me + 1) / n
/* The rows of a product that go into the residual stream: at once, or after a norm. y: where they are until then. */
static void into_stream(const Model *M, const Matrix *w, Norm after, const float *x, long x_stride, int m, float *stream, float *y, long hidden, int me, int n) {
  PART(hidden / L, from, to);
  multiply(w, x, x_stride, m, from, to, (after.gain ? y : stream) + from * L, hidden, !after.gain);
  meet(n);
  if (!after.gain) return;
  PART(m, a, b);
  for (long i = a; i < b; i++) {
    normalise(M, after, y + i * hidden, M->hidden, y + i * hidden);
    for (int j = 0; j < M->hidden; j++) stream[i * hidden + j] += y[i * hidden + j];
  }
  meet(n);
}
static void run_pass(void *job, int me, int n) {
  const Pass *P = job;
  const Model *M = P->model;
  const int m = P->m, D = M->head_size, H = M->hidden, shared = M->heads / M->kv_heads, kv = M->kv_heads;
  long hidden, qkv, queries, mlp;
  widths(M, &hidden, &qkv, &queries, &mlp);
  float *stream = P->scratch, *y = stream + m * hidden, *raw = y + m * hidden, *turned = raw + m * qkv, *attended = turned + m * queries, *inner = attended + m * queries;
  int rows = 0;
  for (int i = 0; i < m; i++) if (P->whole[i] + P->masked > rows) rows = P->whole[i] + P->masked;
  const long input = M->beside ? 2 * hidden : hidden;
  float *own = malloc(sizeof(float) * ((input + hidden) * m + rows + 2 * PAGE + CHUNK * L * m)); /* of this thread alone */
  float *x = own, *beside = x + m * input, *scores = beside + m * hidden, *factors = scores + rows + 2 * PAGE;
  { PART(m, a, b);
    for (long i = a; i < b; i++) {
      float *s = stream + i * hidden;
      if (P->states) {
        if (M->start_normed) normalise(M, M->states, P->states + i * H, H, s);
        else memcpy(s, P->states + i * H, H * sizeof *s);
      } else for (int j = 0; j < H; j++)
        s[j] = M->embeddings[P->ids[i] * H + j] * M->embedding_scale + (M->places ? M->places[(long)P->position[i] * H + j] : 0);
    } }
  meet(n);
  for (int l = P->first; l < P->end; l++) {
    const Layer *layer = M->layer + l;
    for (int i = 0; i < m; i++) {
      if (M->beside) { /* the embedding, and beside it the state */
        normalise(M, layer->before_attention, M->embeddings + P->ids[i] * H, H, x + i * input);
        normalise(M, M->states, P->states + i * H, H, x + i * input + H);
      } else normalise(M, layer->before_attention, stream + i * hidden, H, x + i * input);
      if (M->parallel) normalise(M, layer->before_mlp, stream + i * hidden, H, beside + i * hidden);
    }
    { PART(qkv / L, a, b); multiply(&layer->qkv, x, input, m, a, b, raw + a * L, qkv, 0); }
    meet(n);
    { PART((long)m * (M->heads + kv), a, b);
      for (long u = a; u < b; u++) {
        const int i = u % m, h = u / m, g = h - M->heads, r = P->row[i] % PAGE;
        const float *of_token = raw + i * qkv;
        if (h < M->heads) {
          float *q = turned + i * queries + h * D;
          turn(M, layer, layer->queries, of_token, h, M->heads, P->position[i], q);
          for (int d = 0; d < D; d++) q[d] *= M->attention_scale;
          continue;
        }
        float key[D], *page = page_of(M, P->pages[P->text[i]][P->row[i] / PAGE], l, g);
        turn(M, layer, layer->keys, of_token + M->heads * D, g, kv, P->position[i], key);
        for (int d = 0; d < D; d++) page[((long)(r / L) * D + d) * L + r % L] = key[d];
        memcpy(page + (long)PAGE * D + r * up_to(D), of_token + (M->heads + kv + g) * D, D * sizeof(float));
      } }
    meet(n);
    { PART((long)m * M->heads, a, b);
      for (long u = a; u < b; u++) {
        const int i = u % m, h = u / m;
        attend(M, l, h / shared, P->pages[P->text[i]], turned + i * queries + h * D, P->whole[i], P->mask ? P->mask + (long)i * P->masked : NULL, P->masked, scores, attended + i * queries + h * D);
      } }
    meet(n);
    into_stream(M, &layer->out, layer->after_attention, attended, queries, m, stream, y, hidden, me, n);
    if (!M->parallel) for (int i = 0; i < m; i++) normalise(M, layer->before_mlp, stream + i * hidden, H, beside + i * hidden);
    { PART(mlp / L, a, b);
      const long each = M->gated ? 2 : 1;
      for (long k = a, next; k < b; k = next) { /* some blocks at once, whose factors stay in the cache */
        next = k + CHUNK / each < b ? k + CHUNK / each : b;
        multiply(&layer->up, beside, hidden, m, k * each, next * each, factors, CHUNK * L, 0);
        for (int i = 0; i < m; i++) for (long j = k; j < next; j++) {
          const float *of = factors + (i * CHUNK + (j - k) * each) * L;
          store(inner + i * mlp + j * L, M->gated ? activated(M, load(of)) * load(of + L) : activated(M, load(of)));
        }
      } }
    meet(n);
    into_stream(M, &layer->down, layer->after_mlp, inner, mlp, m, stream, y, hidden, me, n);
    if (P->outputs && P->outputs[l]) { PART(m, a, b); for (long i = a; i < b; i++) memcpy(P->outputs[l] + i * H, stream + i * hidden, H * sizeof(float)); }
  }
  if (P->n_logits) {
    for (int i = 0; i < P->n_logits; i++) normalise(M, M->last, stream + P->wanted[i] * hidden, H, x + i * hidden);
    const long width = up_to(M->ids);
    PART(width / L, a, b);
    multiply(&M->head, x, hidden, P->n_logits, a, b, P->logits + a * L, width, 0);
    if (M->logit_cap > 0) for (int i = 0; i < P->n_logits; i++) for (long j = a * L; j < b * L; j += L) {
      float *o = P->logits + i * width + j; store(o, M->logit_cap * hyperbolic_tangent(load(o) / M->logit_cap)); }
  }
  free(own);
}
void forward(Pass *P, int threads) { together(threads, run_pass, P); }

/* Copy the keys and values of one row of a text over those of another one, in all layers. */
void move(const Model *M, float **pages, int from, int to) {
  const int D = M->head_size, a = from % PAGE, b = to % PAGE;
  for (int l = 0; l < M->layers; l++) for (int g = 0; g < M->kv_heads; g++) {
    const float *old = page_of(M, pages[from / PAGE], l, g);
    float *new = page_of(M, pages[to / PAGE], l, g);
    for (int d = 0; d < D; d++) new[((long)(b / L) * D + d) * L + b % L] = old[((long)(a / L) * D + d) * L + a % L];
    memcpy(new + (long)PAGE * D + b * up_to(D), old + (long)PAGE * D + a * up_to(D), D * sizeof(float));
  }
}
