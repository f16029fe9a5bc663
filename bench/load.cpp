// A load on one HTTP server, from one thread: POSTs of one body over kept connections, and what became of them.
//
//   g++ -O2 -std=c++20 -o load load.cpp
//   ./load PORT PATH BODYFILE CONNECTIONS SECONDS [--rate N] [--once] [--header "Name: value"]...
//
// Without a rate each connection sends its next request when it has its answer (closed loop). With one, requests are due at fixed times
// and wait for a free connection; their latency counts from when they were due, so a server that stalls cannot hide it (open loop).
// With --once each connection sends one request, all at once: a burst. Prints one line of JSON; times are in milliseconds.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

using std::string;
using u64 = uint64_t;

static constexpr u64 SECOND = 1'000'000'000;
//: How long answers may still come after the end.
static constexpr u64 PATIENCE = 15 * SECOND;

static u64 now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

// The body of one answer, whose bytes are counted and not kept.
struct Answer {
    enum class Part { headers, length, chunk_size, chunk, chunk_end, trailer, done };
    Part part = Part::headers;
    string head;        // status line and headers, or the line of a chunk's size
    size_t left = 0;    // of the body, or of the chunk
    int status = 0;
    bool closes = false;

    // Takes what was read; true once the answer is whole.
    bool feed(const char* data, size_t size) {
        while (size > 0 && part != Part::done) {
            size_t used = step(data, size);
            data += used;
            size -= used;
        }
        return part == Part::done;
    }

  private:
    size_t step(const char* data, size_t size) {
        switch (part) {
            case Part::headers: return headers(data, size);
            case Part::length: return body(size, Part::done);
            case Part::chunk: return body(size, Part::chunk_end);
            case Part::chunk_size: return line(data, size);
            case Part::chunk_end:
            case Part::trailer:
                if (*data == '\n') part = part == Part::trailer ? Part::done : Part::chunk_size;
                return 1;
            case Part::done: break;
        }
        return size;
    }

    size_t headers(const char* data, size_t size) {
        size_t before = head.size();
        head.append(data, size);
        size_t end = head.find("\r\n\r\n");
        if (end == string::npos) return size;
        string lower = head.substr(0, end + 2);
        std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
        status = atoi(lower.c_str() + 9);
        closes = lower.find("\r\nconnection: close") != string::npos;
        size_t length = lower.find("\r\ncontent-length:");
        if (lower.find("\r\ntransfer-encoding: chunked") != string::npos) part = Part::chunk_size;
        else if (length != string::npos && (left = atol(lower.c_str() + length + 17)) > 0) part = Part::length;
        else part = Part::done;
        head.clear();
        return end + 4 - before;
    }

    size_t body(size_t size, Part then) {
        size_t used = std::min(size, left);
        left -= used;
        if (left == 0) part = then;
        return used;
    }

    size_t line(const char* data, size_t size) {
        const char* end = static_cast<const char*>(memchr(data, '\n', size));
        head.append(data, end ? end - data : size);
        if (!end) return size;
        left = strtoul(head.c_str(), nullptr, 16);
        head.clear();
        part = left ? Part::chunk : Part::trailer;
        return end - data + 1;
    }
};

struct Connection {
    int fd = -1;
    bool busy = false;
    u64 due = 0, first = 0;
    Answer answer;
};

struct Load {
    string request;
    sockaddr_in address{};
    int epoll = epoll_create1(0);
    std::vector<Connection> connections;
    std::deque<size_t> idle;
    std::deque<u64> waiting;
    std::vector<float> whole, first;
    long ok = 0, failed = 0, refused = 0;
    u64 begin = now_ns(), end = 0;
    bool open_loop = false, once = false;

    bool connect_to(size_t index) {
        Connection& c = connections[index];
        if (c.fd >= 0) close(c.fd);
        c = Connection();
        c.fd = socket(AF_INET, SOCK_STREAM, 0);
        int on = 1;
        setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connect(c.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
            close(c.fd);
            c.fd = -1;
            failed++;
            return false;
        }
        fcntl(c.fd, F_SETFL, O_NONBLOCK);
        epoll_event event{EPOLLIN, {.u64 = index}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c.fd, &event);
        return true;
    }

    void send_on(size_t index, u64 due) {
        Connection& c = connections[index];
        if (c.fd < 0 && !connect_to(index)) return;
        c.answer = Answer();
        c.busy = true;
        c.due = due;
        c.first = 0;
        for (size_t sent = 0; sent < request.size();) {
            ssize_t n = send(c.fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
            if (n > 0) sent += n;
            else if (errno != EAGAIN) return;  // its reader will see why
        }
    }

    // This connection can take another request.
    void free_again(size_t index) {
        Connection& c = connections[index];
        c.busy = false;
        if (once || now_ns() >= end) return;
        if (!open_loop) send_on(index, now_ns());
        else if (waiting.empty()) idle.push_back(index);
        else {
            u64 due = waiting.front();
            waiting.pop_front();
            send_on(index, due);
        }
    }

    void read_from(size_t index) {
        static char data[1 << 18];
        Connection& c = connections[index];
        ssize_t size = recv(c.fd, data, sizeof data, 0);
        if (size < 0 && errno == EAGAIN) return;
        bool busy = c.busy;
        if (size <= 0) {
            failed += busy;
            connect_to(index);
            if (busy) free_again(index);
            return;
        }
        if (!busy) return;
        u64 now = now_ns();
        if (!c.first) c.first = now;
        if (!c.answer.feed(data, size)) return;
        ok += c.answer.status == 200;
        refused += c.answer.status != 200;
        whole.push_back((now - c.due) / 1e6f);
        first.push_back((c.first - c.due) / 1e6f);
        if (c.answer.closes) connect_to(index);
        free_again(index);
    }

    bool any_busy() const {
        return std::any_of(connections.begin(), connections.end(), [](const Connection& c) { return c.busy; });
    }

    void run(double seconds, double rate) {
        for (size_t i = 0; i < connections.size(); i++) connect_to(i);
        begin = now_ns();
        end = begin + static_cast<u64>(seconds * 1e9);
        open_loop = rate > 0;
        u64 gap = open_loop ? static_cast<u64>(1e9 / rate) : 0, next = begin;
        for (size_t i = 0; i < connections.size(); i++) {
            if (open_loop) idle.push_back(i);
            else send_on(i, now_ns());
        }
        std::vector<epoll_event> events(512);
        while (true) {
            u64 now = now_ns();
            for (; open_loop && next <= now && next < end; next += gap) {
                if (idle.empty()) waiting.push_back(next);
                else {
                    send_on(idle.front(), next);
                    idle.pop_front();
                }
            }
            if ((once || now >= end) && (!any_busy() || now >= end + PATIENCE)) break;
            u64 wait = open_loop && next < end ? (next > now ? next - now : 0) : SECOND / 50;
            timespec pause{static_cast<time_t>(wait / SECOND), static_cast<long>(wait % SECOND)};
            int count = epoll_pwait2(epoll, events.data(), static_cast<int>(events.size()), &pause, nullptr);
            for (int i = 0; i < count; i++) read_from(events[i].data.u64);
        }
    }
};

static float percentile(std::vector<float>& values, double share) {
    if (values.empty()) return -1;
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1, static_cast<size_t>(values.size() * share))];
}

int main(int count, char** given) {
    if (count < 6) {
        fprintf(stderr, "usage: load PORT PATH BODYFILE CONNECTIONS SECONDS [--rate N] [--once] [--header H]...\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    Load load;
    string headers;
    double rate = 0;
    for (int i = 6; i < count; i++) {
        string flag = given[i];
        if (flag == "--once") load.once = true;
        else if (flag == "--rate" && i + 1 < count) rate = atof(given[++i]);
        else if (flag == "--header" && i + 1 < count) headers += string(given[++i]) + "\r\n";
    }
    std::stringstream body;
    body << std::ifstream(given[3]).rdbuf();
    string text = body.str();
    load.request = string("POST ") + given[2] + " HTTP/1.1\r\nHost: 127.0.0.1:" + given[1] + "\r\nContent-Type: application/json\r\n" + headers +
                   "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
    load.address.sin_family = AF_INET;
    load.address.sin_port = htons(static_cast<uint16_t>(atoi(given[1])));
    inet_pton(AF_INET, "127.0.0.1", &load.address.sin_addr);
    load.connections.resize(static_cast<size_t>(atoi(given[4])));
    load.run(atof(given[5]), rate);
    double seconds = (std::min(now_ns(), load.end) - load.begin) / 1e9;
    printf(
        "{\"ok\": %ld, \"failed\": %ld, \"refused\": %ld, \"unsent\": %zu, \"seconds\": %.3f, \"rate\": %.1f, \"p50\": %.3f, \"p99\": %.3f, "
        "\"first_p50\": %.3f, \"first_p99\": %.3f}\n",
        load.ok, load.failed, load.refused, load.waiting.size(), seconds, load.ok / seconds, percentile(load.whole, 0.5),
        percentile(load.whole, 0.99), percentile(load.first, 0.5), percentile(load.first, 0.99));
}
