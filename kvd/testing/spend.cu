
// What a model computes, as far as memory is concerned: time. Compiled behind the kernels of a forward.
extern "C" __global__ void spend(long long nanoseconds) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do {
        __nanosleep(500);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while ((long long)(now - began) < nanoseconds);
}
