/* Parallel loops of kernels: running threads claim iterations.

   A team is the threads of one OpenMP region, from a run's first parallel loop to its end; a run without one wakes no
   thread. Its leader calls the kernels one after another; each parallel loop is split into a part for every thread, as
   by OpenMP's static schedule, and each part into a few chunks, the last of them short. A thread claims the chunks of
   its own part first, then the remaining ones of others. So no thread waits for a thread that the system is not
   running: the leader can do all the work itself, and where one core is slower than another, both end together. Alone
   on equal cores every thread works on its own part, and data stays in the cache of the core that computed it.

   Threads without a chunk to claim spin for a moment, then sleep; one that yielded would lose a whole time slice. A
   leader that loses more time waiting for chunks of descheduled threads than a thread contributes goes on with fewer of
   them for a while.

   No header is included, as in kernels. Names end in the version of this interface. */

typedef long long tm_i64;
typedef void (*tm_loop)(const void *data, tm_i64 first, tm_i64 end);
typedef void (*tm_body)(void *data);
struct tm_time { long seconds, nanoseconds; };

extern void *dlsym(void *library, const char *name);
extern long syscall(long number, ...);
extern int sched_yield(void);
extern int sched_getaffinity(int process, unsigned long bytes, void *mask);
extern int clock_gettime(int clock, struct tm_time *time);

#if defined(__x86_64__)
#define TM_FUTEX 202
#define TM_PAUSE() __builtin_ia32_pause()
#define TM_CYCLES() ((tm_i64)__builtin_ia32_rdtsc())
#elif defined(__aarch64__)
#define TM_FUTEX 98
#define TM_PAUSE() __asm__ volatile("yield")
#else
#define TM_PAUSE() (void)0
#endif
#ifndef TM_CYCLES
#define TM_CYCLES() (2 * tm_now())
#endif

enum {
  TM_CHUNKS = 8,          /* of a part, at most */
  TM_SHORT = 4000,        /* cycles of a first chunk: below two microseconds, as a rule */
  TM_MOST = 1024,         /* threads */
  TM_SPIN = 2000,         /* pauses before a thread sleeps: about 100 microseconds */
};
/* Chunks before this one, in sixteenths of a part: the last are short, because others wait for them. */
static const unsigned char TM_BEFORE[TM_CHUNKS + 1] = {0, 4, 8, 10, 12, 13, 14, 15, 16};
static const tm_i64 TM_NOTHING = 100000;    /* ns of lost time that are tolerated */
static const tm_i64 TM_FEWER = 5000000;     /* ns for which a leader goes on with fewer threads, the first time */
static const tm_i64 TM_LONGEST = 160000000; /* and at most; it is doubled while nothing gets better */

struct tm_part {
  _Alignas(64) int left; /* unclaimed chunks */
};

struct tm_team {
  tm_loop loop;
  const void *data;
  tm_i64 extent;
  int parts; /* threads that share a loop: numbers below it; the others have nothing to do */
  int threads;
  int begun; /* its region has */
  tm_i64 first, began, ended, lost; /* times; ns since `began` that the leader waited for chunks of others */
#if defined(__x86_64__)
  unsigned modes; /* of floating-point arithmetic, the leader's */
#endif
  _Alignas(64) int epoch; /* counts loops; threads sleep on it */
  int over, sleepers;
  _Alignas(64) int pending; /* chunks that are not done; the leader sleeps on it */
  int waiting;
  struct tm_part part[];
};

static __thread struct tm_team *tm_current; /* of the leader, while it runs kernels */
static __thread int tm_inside;              /* in an iteration, whose own loops are serial */
static __thread int tm_dropped;             /* threads that this leader does without, until ... */
static __thread tm_i64 tm_until, tm_length; /* ... this time; for how long it was the last time */
int tm_most_1 = TM_MOST; /* threads that a quota of processor time allows */

static tm_i64 tm_now(void)
{
  struct tm_time t;
  clock_gettime(1, &t);
  return t.seconds * 1000000000LL + t.nanoseconds;
}

/* Sleep while *word is `value`, or wake those who do. */
static void tm_sleep(int *word, int value)
{
#ifdef TM_FUTEX
  syscall(TM_FUTEX, word, 128, value, (void *)0);
#else
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) sched_yield();
#endif
}

static void tm_wake(int *word)
{
#ifdef TM_FUTEX
  syscall(TM_FUTEX, word, 129, TM_MOST);
#endif
}

static int tm_chunks(tm_i64 iterations) { return iterations < TM_CHUNKS ? (int)iterations : TM_CHUNKS; }

/* The iterations of a part of this length before a chunk. */
static tm_i64 tm_before(tm_i64 length, int chunk)
{
  return length < 2 * TM_CHUNKS ? length * chunk / tm_chunks(length) : length * TM_BEFORE[chunk] / 16;
}

/* Runs the remaining chunks of all parts, those of `self` first. A thread whose first chunk is short claims all that
   are left at once: its part is over before another could take any. Returns the number of chunks done. */
static int tm_work(struct tm_team *team, int self)
{
  int done = 0, most = 1;
  for (int k = 0; k < team->parts; k++) {
    const int p = (self + k) % team->parts;
    int *const left = &team->part[p].left;
    int n = __atomic_load_n(left, __ATOMIC_ACQUIRE);
    while (n > 0) {
      const int taken = most < n ? most : n;
      if (!__atomic_compare_exchange_n(left, &n, n - taken, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
      /* Until this chunk is done there is no other loop, so what it says is stable only now. */
      const tm_i64 share = team->extent / team->parts, more = team->extent % team->parts;
      const tm_i64 start = p * share + (p < more ? p : more), length = share + (p < more);
      const int chunk = tm_chunks(length) - n;
      const tm_i64 began = done ? 0 : TM_CYCLES();
      team->loop(team->data, start + tm_before(length, chunk), start + tm_before(length, chunk + taken));
      if (!done && TM_CYCLES() - began < TM_SHORT) most = TM_CHUNKS;
      done += taken;
      n = __atomic_load_n(left, __ATOMIC_ACQUIRE);
    }
  }
  return done;
}

/* Until *word is not `value`, for a moment. 0 when that was not enough. */
static int tm_await(const int *word, int value)
{
  for (int i = 0; i < TM_SPIN; i++) {
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return 1;
    TM_PAUSE();
  }
  return 0;
}

static void tm_follow(struct tm_team *team, int self)
{
  int epoch = 0;
  tm_inside = 1;
  for (;;) {
    const int done = tm_work(team, self);
    if (done && __atomic_sub_fetch(&team->pending, done, __ATOMIC_SEQ_CST) == 0 &&
        __atomic_load_n(&team->waiting, __ATOMIC_SEQ_CST))
      tm_wake(&team->pending);
    if (!tm_await(&team->epoch, epoch)) {
      __atomic_fetch_add(&team->sleepers, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&team->epoch, __ATOMIC_SEQ_CST) == epoch) tm_sleep(&team->epoch, epoch);
      __atomic_fetch_sub(&team->sleepers, 1, __ATOMIC_SEQ_CST);
    }
    epoch = __atomic_load_n(&team->epoch, __ATOMIC_ACQUIRE);
    if (self >= __atomic_load_n(&team->parts, __ATOMIC_ACQUIRE))
      while (!__atomic_load_n(&team->over, __ATOMIC_ACQUIRE)) tm_sleep(&team->over, 0);
    if (__atomic_load_n(&team->over, __ATOMIC_ACQUIRE)) break;
  }
  tm_inside = 0;
}

/* True if the leader lost more time than one of its threads contributes. */
static int tm_loses(const struct tm_team *team, tm_i64 now)
{
  return team->lost > TM_NOTHING && team->lost * (team->parts - 1) > now - team->began - team->lost;
}

static void tm_next_epoch(struct tm_team *team)
{
  __atomic_fetch_add(&team->epoch, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&team->sleepers, __ATOMIC_SEQ_CST)) tm_wake(&team->epoch);
}

/* The leader has nothing left to do, and waits for the chunks that others have claimed. */
static void tm_wait(struct tm_team *team)
{
  int pending = __atomic_load_n(&team->pending, __ATOMIC_ACQUIRE);
  for (int i = 0; pending && i < TM_SPIN; i++) {
    TM_PAUSE();
    pending = __atomic_load_n(&team->pending, __ATOMIC_ACQUIRE);
  }
  if (!pending) return;
  const tm_i64 began = tm_now();
  __atomic_store_n(&team->waiting, 1, __ATOMIC_SEQ_CST);
  while ((pending = __atomic_load_n(&team->pending, __ATOMIC_SEQ_CST)) != 0) tm_sleep(&team->pending, pending);
  __atomic_store_n(&team->waiting, 0, __ATOMIC_SEQ_CST);
  const tm_i64 now = tm_now();
  team->lost += now - began;
  if (now - team->began > TM_FEWER && tm_loses(team, now)) { /* for the rest of this run */
    __atomic_store_n(&team->parts, team->parts / 2, __ATOMIC_RELEASE);
    team->began = now;
    team->lost = 0;
  }
}

/* A function of the process, wherever it was loaded from. */
static void *tm_find(const char *name) { return dlsym((void *)0, name); }

/* OpenMP's. A region that has begun ends by its leader; so what the leader does in between is its body. */
static int (*tm_thread_number)(void);
static void (*tm_region_begin)(void (*)(void *), void *, unsigned);
static void (*tm_region_end)(void);

static void tm_member(void *at)
{
  struct tm_team *const team = at;
#if defined(__x86_64__)
  const unsigned modes = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(team->modes);
#endif
  tm_follow(team, tm_thread_number());
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(modes);
#endif
}

static void tm_begin(struct tm_team *team)
{
  team->begun = 1;
  team->began = tm_now();
#if defined(__x86_64__)
  team->modes = __builtin_ia32_stmxcsr();
#endif
  tm_region_begin(tm_member, team, (unsigned)team->threads);
}

static void tm_end(struct tm_team *team)
{
  __atomic_store_n(&team->over, 1, __ATOMIC_SEQ_CST);
  if (team->parts < team->threads) tm_wake(&team->over);
  tm_next_epoch(team);
  team->ended = tm_now();
  tm_region_end();
}

struct tm_single { tm_loop loop; const void *data; tm_i64 extent; };

void tm_parallel_1(tm_loop loop, const void *data, tm_i64 extent);
void tm_team_1(tm_body body, void *argument, int threads);

static void tm_run_single(void *at)
{
  const struct tm_single *s = at;
  tm_parallel_1(s->loop, s->data, s->extent);
}

/* Run `loop` over all iterations below `extent`, each exactly once, in ranges. */
void tm_parallel_1(tm_loop loop, const void *data, tm_i64 extent)
{
  struct tm_team *const team = tm_current;
  if (extent <= 0) return;
  if (extent == 1 || tm_inside) {
    loop(data, 0, extent);
    return;
  }
  if (!team) { /* a kernel called by itself */
    struct tm_single single = {loop, data, extent};
    tm_team_1(tm_run_single, &single, 0);
    return;
  }
  if (team->parts == 1) {
    loop(data, 0, extent);
    return;
  }
  team->loop = loop;
  team->data = data;
  team->extent = extent;
  if (!team->begun) tm_begin(team);
  const tm_i64 share = extent / team->parts, more = extent % team->parts;
  const int chunks = tm_chunks(share), longer = tm_chunks(share + 1);
  __atomic_store_n(&team->pending, (int)(more * longer + (team->parts - more) * chunks), __ATOMIC_RELEASE);
  for (int p = 0; p < team->parts; p++)
    __atomic_store_n(&team->part[p].left, p < more ? longer : chunks, __ATOMIC_RELEASE);
  tm_next_epoch(team);
  tm_inside = 1;
  const int done = tm_work(team, 0);
  tm_inside = 0;
  if (__atomic_sub_fetch(&team->pending, done, __ATOMIC_ACQ_REL)) tm_wait(team);
}


static int tm_usable(void)
{
  unsigned long mask[128];
  int count = 0;
  if (sched_getaffinity(0, sizeof mask, mask) < 0) return TM_MOST;
  for (unsigned i = 0; i < 128; i++) count += __builtin_popcountl(mask[i]);
  return count;
}

/* After a run with so many threads: how many the next ones use, and for how long. */
static void tm_judge(struct tm_team *team)
{
  const int threads = team->threads;
  const tm_i64 now = tm_now();
  team->lost += now - team->ended;
  if (team->parts == threads && !tm_loses(team, now)) {
    if (now > tm_until + tm_length) tm_dropped = 0, tm_length = 0;
    return;
  }
  if (!tm_dropped)
    tm_dropped = 1;
  else if (team->first < tm_until) /* fewer were still too many */
    tm_dropped += (threads + 1) / 2;
  tm_length = tm_length ? (2 * tm_length < TM_LONGEST ? 2 * tm_length : TM_LONGEST) : TM_FEWER;
  tm_until = now + tm_length;
}

/* Call `body`, the parallel loops of whose kernels are shared by so many threads; 0: as many as OpenMP would use. */
void tm_team_1(tm_body body, void *argument, int threads)
{
  static int (*most_threads)(void);
  if (!most_threads && !tm_current) {
    tm_thread_number = (int (*)(void))tm_find("omp_get_thread_num");
    tm_region_begin = (void (*)(void (*)(void *), void *, unsigned))tm_find("GOMP_parallel_start");
    tm_region_end = (void (*)(void))tm_find("GOMP_parallel_end");
    if (tm_thread_number && tm_region_begin && tm_region_end)
      most_threads = (int (*)(void))tm_find("omp_get_max_threads");
  }
  if (tm_current || tm_inside) { /* within a run, which goes on */
    body(argument);
    return;
  }
  if (!most_threads)
    threads = 1;
  else if (threads <= 0)
    threads = most_threads();
  if (threads > 1) {
    const int usable = tm_usable();
    threads = threads < usable ? threads : usable;
    threads = threads < tm_most_1 ? threads : tm_most_1;
  }
  const tm_i64 first = threads > 1 ? tm_now() : 0;
  if (first && first < tm_until) threads = threads > tm_dropped ? threads - tm_dropped : 1;
  threads = threads < 1 ? 1 : threads;
  char memory[sizeof(struct tm_team) + threads * sizeof(struct tm_part) + 64];
  struct tm_team *const team = (struct tm_team *)(((unsigned long)memory + 63) & ~63ul);
  *team = (struct tm_team){.parts = threads, .threads = threads, .first = first};
  for (int p = 0; p < threads; p++) team->part[p].left = 0;
  tm_current = team;
  body(argument);
  tm_current = 0;
  if (!team->begun) return;
  tm_end(team);
  tm_judge(team);
}
