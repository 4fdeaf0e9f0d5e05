/* Fibers: one stack for each CUDA thread that has started and not ended, and the switch between two of them. */
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__) || defined(TM_PORTABLE_SWITCH)
#include <ucontext.h>
#define TM_UCONTEXT 1
#else
#define TM_UCONTEXT 0
#endif

namespace sim {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kGuardBytes = 4096;

#if TM_UCONTEXT

struct Context {
  ucontext_t saved;
};
inline void switch_context(Context &from, Context &to) { swapcontext(&from.saved, &to.saved); }
inline void make_context(Context &context, char *stack, void (*entry)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack + kGuardBytes;
  context.saved.uc_stack.ss_size = kStackBytes - kGuardBytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}

#else

/* Only what a called function must keep (System V ABI) is saved; swapcontext would also make two system calls. */
extern "C" void tm_switch_stack(void **save, void *to);
asm(R"(
.text
.globl tm_switch_stack
.hidden tm_switch_stack
.type tm_switch_stack,@function
tm_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tm_switch_stack,.-tm_switch_stack
)");

struct Context {
  void *sp;
};
inline void switch_context(Context &from, Context &to) { tm_switch_stack(&from.sp, to.sp); }
inline void make_context(Context &context, char *stack, void (*entry)()) {
  /* Tops that all lie at the same offset of a page would share a few sets of the cache. */
  const size_t shift = (reinterpret_cast<size_t>(stack) / kStackBytes) % 64 * 192;
  void **top = reinterpret_cast<void **>(stack + kStackBytes - shift);
  *--top = nullptr; /* the entry finds the stack aligned as after a call */
  *--top = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  context.sp = top;
}

#endif

/* Stacks that are used again and again; each has a page below it that nothing may touch. */
class Stacks {
 public:
  ~Stacks() {
    for (char *stack : all_) munmap(stack, kStackBytes);
  }
  char *take() {
    if (free_.empty()) grow();
    char *stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give(char *stack) { free_.push_back(stack); }
  void reclaim() { free_ = all_; }

 private:
  void grow() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (stack == MAP_FAILED) abort();
    mprotect(stack, kGuardBytes, PROT_NONE);
    all_.push_back(static_cast<char *>(stack));
    free_.push_back(static_cast<char *>(stack));
  }
  std::vector<char *> all_, free_;
};

}  // namespace sim
